//! What commands print: tables for people, JSON for programs.

use std::io::Write;

use clap::ValueEnum;

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Text,
    /// For programs
    Json,
}

/// Prints a JSON document.
pub fn json(value: &serde_json::Value) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    Ok(())
}

/// Prints one line.
pub fn line(text: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout().lock(), "{text}")?;
    Ok(())
}

/// A table whose first column is text and whose others are right-aligned.
#[derive(Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with a header.
    pub fn new(header: &[&str]) -> Self {
        Table { rows: vec![header.iter().map(|cell| cell.to_string()).collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The lines, each cell as wide as its column.
    pub fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut lines = Vec::new();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
                if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            lines.push(cells.collect::<Vec<_>>().join("  ").trim_end().to_string());
        }
        lines.join("\n")
    }
}

/// A number with `digits` decimals; a dash where there is none (absent is not 0).
pub fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".to_string(), |value| format!("{value:.digits$}"))
}
