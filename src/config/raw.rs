//! Values as they were given: file, then variables, then flags, each with where it came from. Nothing is interpreted
//! here but names; every unknown one is an error with the nearest known name.

use std::collections::BTreeMap;
use std::path::Path;

use super::table::{ELSEWHERE, RETIRED, SETTINGS, Setting, nearest};

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The table.
    Default,
    /// A line of the file.
    File(String),
    /// A variable.
    Variable(String),
    /// A flag.
    Flag(String),
    /// A calibration; whether its row leaves the value out, so that it was estimated.
    Calibration {
        /// Its name.
        name: String,
        /// Whether the value was scaled from the defaults.
        estimated: bool,
    },
}

impl std::fmt::Display for Source {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Default => out.write_str("default"),
            Source::File(place) => write!(out, "file {place}"),
            Source::Variable(name) => write!(out, "variable {name}"),
            Source::Flag(name) => write!(out, "flag --{name}"),
            Source::Calibration { name, estimated: false } => write!(out, "calibration {name}"),
            Source::Calibration { name, estimated: true } => write!(out, "calibration {name}, estimated"),
        }
    }
}

/// A value and its source; lists keep their items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// Items; one for everything but lists.
    pub items: Vec<String>,
    /// Where from.
    pub source: Source,
}

/// All values given, the winning one per key, and what was said about the names.
#[derive(Clone, Debug, Default)]
pub struct Raw {
    /// By key; absent means default.
    pub given: BTreeMap<&'static str, Given>,
    /// Names that are no settings, and files that cannot be read.
    pub errors: Vec<String>,
    /// Retired and doubtful names.
    pub warnings: Vec<String>,
}

impl Raw {
    /// Reads a TOML file.
    pub fn file(&mut self, path: &Path) {
        let place = path.display();
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => return self.errors.push(format!("cannot read the configuration file {place}: {error}")),
        };
        let table: toml::Table = match text.parse() {
            Ok(table) => table,
            Err(error) => {
                let message = error.to_string().trim().replace('\n', " ");
                return self.errors.push(format!("the configuration file {place} is not TOML: {message}"));
            }
        };
        for (key, value) in table {
            let line = text
                .lines()
                .position(|line| line.trim_start().trim_start_matches(['[', '"']).starts_with(key.as_str()))
                .map_or(String::new(), |line| format!(":{}", line + 1));
            let source = Source::File(format!("{place}{line}"));
            let Some(setting) = Setting::find(&key) else {
                let hint = elsewhere(&key).unwrap_or_else(|| hint(nearest(&key, SETTINGS.iter().map(|s| s.key))));
                self.errors.push(format!("{source}: there is no setting {key}{hint}"));
                continue;
            };
            match items_of(&value) {
                Some(items) => {
                    self.given.insert(setting.key, Given { items, source });
                }
                None => self.errors.push(format!("{source}: {key} should be a single value or an array of values")),
            }
        }
    }

    /// Reads environment variables: ours, the incumbent's that mean the same, and those that mean nothing any more.
    pub fn variables(&mut self, variables: impl Iterator<Item = (String, String)>) {
        let mut predict_host = None;
        let mut predict_port = None;
        let mut ours = Vec::new();
        for (name, value) in variables {
            if let Some(key) = name.strip_prefix("FORETOKEN_") {
                if is_service_link(key) {
                    continue;
                }
                match SETTINGS.iter().find(|setting| setting.variable() == name) {
                    Some(setting) => ours.push((setting, name, value)),
                    None => {
                        let known: Vec<String> = SETTINGS.iter().map(Setting::variable).collect();
                        let hint = hint(nearest(&name, known.iter().map(String::as_str)));
                        self.errors.push(format!("variable {name}: there is no such setting{hint}"));
                    }
                }
            } else if let Some(setting) = SETTINGS.iter().find(|setting| setting.also.contains(&name.as_str())) {
                self.give(setting, value, Source::Variable(name));
            } else if let Some((_, instead)) = RETIRED.iter().find(|(retired, _)| *retired == name) {
                self.warnings.push(format!("variable {name} has no effect: {instead}"));
            } else if name == "PREDICT_HOST" {
                predict_host = Some(value);
            } else if name == "PREDICT_PORT" {
                predict_port = Some(value);
            } else if let Some(rest) = name.strip_prefix("LATENCY_")
                && !is_service_link(rest)
            {
                let known =
                    SETTINGS.iter().flat_map(|setting| setting.also).chain(RETIRED.iter().map(|(name, _)| name));
                let hint = hint(nearest(&name, known.copied()));
                self.warnings.push(format!("variable {name} is unknown and has no effect{hint}"));
            }
        }
        if predict_host.is_some() || predict_port.is_some() {
            let host = predict_host.unwrap_or_else(|| "0.0.0.0".to_string());
            let port = predict_port.unwrap_or_else(|| "8001".to_string());
            let items = vec!["0.0.0.0:8000".to_string(), format!("{host}:{port}")];
            self.given
                .insert("listen", Given { items, source: Source::Variable("PREDICT_HOST and PREDICT_PORT".into()) });
        }
        // Ours win over the incumbent's names.
        for (setting, name, value) in ours {
            self.give(setting, value, Source::Variable(name));
        }
    }

    /// Takes flags.
    pub fn flags(&mut self, flags: impl Iterator<Item = (&'static str, Vec<String>)>) {
        for (key, values) in flags {
            if let Some(setting) = Setting::find(key) {
                let items = values.iter().flat_map(|value| split(setting, value)).collect();
                self.given.insert(setting.key, Given { items, source: Source::Flag(setting.flag()) });
            }
        }
    }

    /// Refuses flags that are none, with what does the same.
    pub fn misnamed(&mut self, flags: impl Iterator<Item = &'static str>) {
        for name in flags {
            let hint = elsewhere(name).unwrap_or_default().replacen("it is ", "it is --", 1);
            self.errors.push(format!("flag --{name}: there is no such setting{hint}"));
        }
    }

    fn give(&mut self, setting: &'static Setting, value: String, source: Source) {
        self.given.insert(setting.key, Given { items: split(setting, &value), source });
    }
}

fn split(setting: &Setting, value: &str) -> Vec<String> {
    match setting.kind {
        super::table::Kind::List => {
            value.split(',').map(|item| item.trim().to_string()).filter(|item| !item.is_empty()).collect()
        }
        _ => vec![value.trim().to_string()],
    }
}

/// `FOO_SERVICE_HOST`, `FOO_PORT_8000_TCP_ADDR` and the like: set by Kubernetes for a Service of that name.
fn is_service_link(rest: &str) -> bool {
    let rest = rest.rsplit_once("_SERVICE_").map_or(rest, |(_, tail)| tail);
    rest.starts_with("SERVICE_HOST")
        || rest.starts_with("SERVICE_PORT")
        || rest == "HOST"
        || rest == "PORT"
        || rest.starts_with("PORT_")
        || rest.contains("_PORT_")
        || rest.ends_with("_PORT")
}

fn items_of(value: &toml::Value) -> Option<Vec<String>> {
    match value {
        toml::Value::String(text) => Some(vec![text.clone()]),
        toml::Value::Integer(number) => Some(vec![number.to_string()]),
        toml::Value::Float(number) => Some(vec![number.to_string()]),
        toml::Value::Boolean(flag) => Some(vec![flag.to_string()]),
        toml::Value::Array(items) => {
            items.iter().map(|item| items_of(item).filter(|one| one.len() == 1)?.pop()).collect()
        }
        toml::Value::Table(_) | toml::Value::Datetime(_) => None,
    }
}

/// What a setting that is looked for under this name is called.
fn elsewhere(name: &str) -> Option<String> {
    ELSEWHERE.iter().find(|(known, _)| *known == name).map(|(_, instead)| format!("; it is {instead}"))
}

fn hint(nearest: Option<&str>) -> String {
    nearest.map_or(String::new(), |name| format!("; did you mean {name}?"))
}
