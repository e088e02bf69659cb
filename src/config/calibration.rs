//! Calibrations: rows of what was measured of a model on an accelerator, and the prior's constants that follow from one.
//!
//! The form is told in `models/calibrations.toml`, which is part of the binary; a file of the user's has the same.

use std::ops::Range;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::table::nearest;
use crate::model::Prior;

/// The shipped rows.
const SHIPPED: &str = include_str!("../../models/calibrations.toml");

/// Largest file that is read, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Characters of a name and of a text.
const NAME_CHARS_MAX: usize = 64;
const TEXT_CHARS_MAX: usize = 400;

/// Keys of a row that are texts.
const TEXTS: [&str; 5] = ["name", "model", "accelerator", "engine", "source"];

/// Keys of a row that are numbers and no setting.
const FACTS: [&str; 3] = ["tensor_parallel", "chunk_tokens", "peak_prefill_tokens_per_s"];

/// Settings that a row gives values to, in the order of [`Calibration::constants`].
pub const CALIBRATED: [&str; 4] =
    ["prefill_tokens_per_s", "attention_ms_per_mtoken2", "ttft_floor_ms", "decode_step_ms"];

/// One constant of the prior as a row gives it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constant {
    /// Value, in the unit of its setting; finite and > 0.
    pub value: f64,
    /// Whether the row leaves it out, so that it was scaled from the defaults.
    pub estimated: bool,
}

/// One row.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// How it is asked for.
    pub name: String,
    /// Model, with its quantisation where that matters.
    pub model: String,
    /// Accelerator.
    pub accelerator: String,
    /// Engine.
    pub engine: String,
    /// Accelerators that share one model.
    pub tensor_parallel: u32,
    /// Who measured it.
    pub source: String,
    /// Tokens of one full prefill chunk, if given.
    pub chunk_tokens: Option<f64>,
    /// Tokens of a chunk over its time, if given, tokens/s.
    pub peak_prefill_tokens_per_s: Option<f64>,
    /// In the order of [`CALIBRATED`].
    pub constants: [Constant; 4],
}

/// The shipped rows, in the order of the file.
///
/// # Errors
/// Never in a released build: a test reads the file.
pub fn shipped() -> Result<Vec<Calibration>, Vec<String>> {
    parse(SHIPPED)
}

/// The row that a value of the setting `calibration` asks for: the name of a shipped one, a file with one row, or
/// `FILE#NAME`. What ends in `.toml` or has a slash in it is a file.
///
/// # Errors
/// Everything that is wrong, each with what to do.
pub fn find(asked: &str) -> Result<Calibration, Vec<String>> {
    let (file, name) = match asked.split_once('#') {
        Some((file, name)) => (file, Some(name)),
        None => (asked, None),
    };
    if !file.ends_with(".toml") && !file.contains('/') {
        let rows = shipped()?;
        let hint = nearest(asked, rows.iter().map(|row| row.name.as_str()));
        let hint = hint.map_or(String::new(), |name| format!(" did you mean {name}?"));
        let unknown = format!(
            "there is no calibration {asked:?};{hint} foretoken config --list-calibrations names all; what ends in .toml \
             is a file"
        );
        return rows.into_iter().find(|row| row.name == asked).ok_or_else(|| vec![unknown]);
    }
    let size = std::fs::metadata(Path::new(file)).map(|data| data.len());
    let text = match size {
        Ok(size) if size > FILE_BYTES_MAX => Err(format!("it is larger than {FILE_BYTES_MAX} bytes")),
        Ok(_) => std::fs::read_to_string(file).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let text = text.map_err(|error| vec![format!("the calibration file {file} cannot be read: {error}")])?;
    let rows = parse(&text).map_err(|errors| {
        errors.into_iter().map(|error| format!("the calibration file {file}, {error}")).collect::<Vec<_>>()
    })?;
    let names = rows.iter().map(|row| row.name.as_str()).collect::<Vec<_>>().join(", ");
    match (name, rows.len()) {
        (None, 1) => rows.into_iter().next(),
        (None, _) => return Err(vec![format!("{file} has several calibrations; give {file}#NAME, one of {names}")]),
        (Some(name), _) => rows.into_iter().find(|row| row.name == name),
    }
    .ok_or_else(|| vec![format!("{file} has no calibration {:?}; it has {names}", name.unwrap_or_default())])
}

/// Reads rows. Pure; never panics, whatever the text.
///
/// # Errors
/// Everything that is wrong, each with its line.
pub fn parse(text: &str) -> Result<Vec<Calibration>, Vec<String>> {
    let line = |at: &Range<usize>| text.get(..at.start).map_or(1, |before| before.matches('\n').count() + 1);
    let table = DeTable::parse(text).map_err(|error| {
        let place = error.span().map_or(String::new(), |at| format!("line {}: ", line(&at)));
        vec![format!("{place}it is not TOML: {}", error.message())]
    })?;
    let mut errors = Vec::new();
    let mut rows: Vec<Calibration> = Vec::new();
    for (key, value) in table.get_ref() {
        let place = line(&key.span());
        let items = value.get_ref().as_array().filter(|_| key.get_ref() == "calibration");
        let Some(items) = items else {
            errors.push(format!(
                "line {place}: expected only rows that begin with [[calibration]], not {}",
                key.get_ref()
            ));
            continue;
        };
        for item in items.iter() {
            let Some(table) = item.get_ref().as_table() else {
                errors.push(format!("line {place}: a calibration is a table that begins with [[calibration]]"));
                continue;
            };
            let at = line(&item.span());
            match row(table, at, &line) {
                Ok(row) if rows.iter().any(|other| other.name == row.name) => {
                    errors.push(format!("line {at}: there are two calibrations called {}", row.name));
                }
                Ok(row) => rows.push(row),
                Err(wrong) => errors.extend(wrong),
            }
        }
    }
    if rows.is_empty() && errors.is_empty() {
        errors.push("line 1: there is no [[calibration]] in it".to_string());
    }
    if errors.is_empty() { Ok(rows) } else { Err(errors) }
}

/// Texts and numbers of a row as they stand there.
#[derive(Default)]
struct Given {
    texts: [Option<String>; TEXTS.len()],
    tensor_parallel: Option<f64>,
    chunk_tokens: Option<f64>,
    peak: Option<f64>,
    constants: [Option<f64>; 4],
}

fn row(table: &DeTable<'_>, at: usize, line: &dyn Fn(&Range<usize>) -> usize) -> Result<Calibration, Vec<String>> {
    let mut given = Given::default();
    let mut errors = Vec::new();
    for (key, value) in table {
        let (key, place) = (key.get_ref().as_ref(), line(&key.span()));
        if let Err(wrong) = given.take(key, value.get_ref()) {
            errors.push(format!("line {place}: {wrong}"));
        }
    }
    let has = |name: &str| table.iter().any(|(key, _)| key.get_ref() == name);
    for key in TEXTS.into_iter().chain(["tensor_parallel"]).filter(|key| !has(key)) {
        errors.push(format!("line {at}: a calibration needs {key}"));
    }
    if !has("peak_prefill_tokens_per_s") && !has("prefill_tokens_per_s") {
        errors.push(format!("line {at}: a calibration needs peak_prefill_tokens_per_s or prefill_tokens_per_s"));
    }
    if has("peak_prefill_tokens_per_s") != has("chunk_tokens") {
        errors.push(format!("line {at}: peak_prefill_tokens_per_s and chunk_tokens go together"));
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let constants = given.resolved();
    let [name, model, accelerator, engine, source] = given.texts.map(Option::unwrap_or_default);
    Ok(Calibration {
        name,
        model,
        accelerator,
        engine,
        source,
        tensor_parallel: given.tensor_parallel.unwrap_or(1.0) as u32,
        chunk_tokens: given.chunk_tokens,
        peak_prefill_tokens_per_s: given.peak,
        constants,
    })
}

impl Given {
    fn take(&mut self, key: &str, value: &DeValue<'_>) -> Result<(), String> {
        if let Some(index) = TEXTS.iter().position(|name| *name == key) {
            self.texts[index] = Some(text(key, value)?);
            return Ok(());
        }
        let (slot, range) = match key {
            "tensor_parallel" => (&mut self.tensor_parallel, 1.0..=4096.0),
            "chunk_tokens" => (&mut self.chunk_tokens, 1.0..=1e8),
            "peak_prefill_tokens_per_s" => (&mut self.peak, 1.0..=1e9),
            _ => {
                let Some(index) = CALIBRATED.iter().position(|name| *name == key) else {
                    let hint = nearest(key, TEXTS.into_iter().chain(FACTS).chain(CALIBRATED));
                    let hint = hint.map_or(String::new(), |name| format!("; did you mean {name}?"));
                    return Err(format!("there is no {key} in a calibration{hint}"));
                };
                let range = if index == 0 { 1.0..=1e9 } else { 1e-6..=1e6 };
                (&mut self.constants[index], range)
            }
        };
        let number = match value {
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().replace('_', "").parse::<f64>().ok(),
            DeValue::Float(number) => number.as_str().replace('_', "").parse::<f64>().ok(),
            _ => None,
        };
        let whole = matches!(key, "tensor_parallel" | "chunk_tokens");
        let number = number.filter(|number| range.contains(number) && (!whole || number.fract() == 0.0));
        let kind = if whole { "a whole number" } else { "a number" };
        let (min, max) = range.into_inner();
        let wrong = || format!("{key} should be {kind} from {min} to {max}; leave out what is not known");
        *slot = Some(number.ok_or_else(wrong)?);
        Ok(())
    }

    /// The constants, those that are absent scaled from the defaults.
    fn resolved(&self) -> [Constant; 4] {
        let default = Prior::default();
        let ms_per_token = 1e3 / default.prefill_tokens_per_s;
        let defaults_ms = |tokens: f64| {
            default.ttft_floor_ms + ms_per_token * tokens + default.attention_ms_per_mtoken2 * tokens * tokens / 1e6
        };
        let slower = match (self.peak, self.chunk_tokens, self.constants[0]) {
            (Some(peak), Some(tokens), _) => tokens / peak * 1e3 / defaults_ms(tokens),
            (_, _, Some(rate)) => default.prefill_tokens_per_s / rate,
            _ => 1.0,
        };
        let estimates = [
            default.prefill_tokens_per_s / slower,
            default.attention_ms_per_mtoken2 * slower,
            default.ttft_floor_ms * slower,
            default.decode_step_ms * slower,
        ];
        let mut constants = [Constant { value: 1.0, estimated: true }; 4];
        for ((constant, given), estimate) in constants.iter_mut().zip(self.constants).zip(estimates) {
            *constant = Constant { value: given.unwrap_or_else(|| rounded(estimate)), estimated: given.is_none() };
        }
        constants
    }
}

/// Four significant digits: an estimate claims no more.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

fn text(key: &str, value: &DeValue<'_>) -> Result<String, String> {
    let text = value.as_str().unwrap_or_default();
    if key == "name" {
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-');
        if text.is_empty() || text.len() > NAME_CHARS_MAX || !text.chars().all(good) || text.ends_with(".toml") {
            return Err(format!(
                "name should be 1 to {NAME_CHARS_MAX} small letters, digits, dots and dashes, and not end in .toml"
            ));
        }
    } else if text.trim().is_empty() || text.chars().count() > TEXT_CHARS_MAX || text.chars().any(char::is_control) {
        return Err(format!("{key} should be a text of one line, at most {TEXT_CHARS_MAX} characters"));
    }
    Ok(text.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::features;
    use crate::model::TargetModel;
    use crate::types::{Features, Role, Target};

    const ROW: &str = "[[calibration]]\nname = \"mine\"\nmodel = \"M\"\naccelerator = \"A\"\nengine = \"E\"\n\
                       source = \"S\"\ntensor_parallel = 2\n";

    fn one(numbers: &str) -> Calibration {
        parse(&format!("{ROW}{numbers}")).unwrap().remove(0)
    }

    fn prior_of(row: &Calibration) -> Prior {
        let [rate, attention, floor, step] = row.constants.map(|constant| constant.value);
        Prior {
            calibrated: true,
            prefill_tokens_per_s: rate,
            attention_ms_per_mtoken2: attention,
            ttft_floor_ms: floor,
            decode_step_ms: step,
        }
    }

    #[test]
    fn every_shipped_row_predicts_the_chunk_that_was_measured() {
        let rows = shipped().unwrap();
        assert_eq!(rows.len(), 9);
        assert_eq!(features::COLUMNS, prior_of(&rows[0]).theta(Target::Ttft).len());
        for row in &rows {
            let tokens = row.chunk_tokens.unwrap();
            let idle = Features {
                kv_cache_usage: 0.0,
                input_tokens: tokens as u32,
                requests_waiting: 0,
                requests_running: 0,
                prefix_cache_score: 0.0,
                prefill_tokens_in_flight: 0,
                decode_tokens_in_flight: 0,
                encoder_matched_size: 0,
                encoder_input_size: 0,
                role: Role::Both,
            };
            let predicted = TargetModel::prior(Target::Ttft, &prior_of(row)).anchors(&idle).base_ms[0];
            let measured = tokens / row.peak_prefill_tokens_per_s.unwrap() * 1e3;
            assert!((predicted / measured - 1.0).abs() < 2e-3, "{}: {predicted} {measured}", row.name);
        }
    }

    #[test]
    fn the_matrix_is_shipped_as_its_sources_measured_it() {
        let rates: Vec<(String, u32, f64)> = shipped()
            .unwrap()
            .into_iter()
            .map(|row| (row.name, row.tensor_parallel, row.peak_prefill_tokens_per_s.unwrap()))
            .collect();
        let expected = [
            ("gpt-oss-120b-h100-vllm-tp1", 1, 39_065.0),
            ("qwen3-32b-tpu-v7x-vllm-tp8", 8, 27_336.0),
            ("qwen3-32b-tpu-v6e-vllm-tp8", 8, 26_290.0),
            ("glm-5.2-nvfp4-b200-sglang-tp8", 8, 24_027.0),
            ("qwen3-32b-h100-vllm-tp2-single-fit", 2, 20_480.0),
            ("qwen3-coder-480b-fp8-tpu-v7x-vllm-tp8", 8, 16_444.0),
            ("qwen3-32b-h100-vllm-tp2", 2, 15_928.0),
            ("qwen3-vl-32b-h200-vllm-tp2", 2, 15_751.0),
            ("qwen3-32b-h100-sglang-tp2", 2, 15_360.0),
        ];
        assert_eq!(rates, expected.map(|(name, parallel, rate)| (name.to_string(), parallel, rate)));
    }

    #[test]
    fn what_a_row_gives_stands_and_the_rest_is_scaled_and_called_estimated() {
        let rate = Prior::default().prefill_tokens_per_s / 2.0;
        let half = one(&format!("prefill_tokens_per_s = {rate:?}\nttft_floor_ms = 30\n"));
        let given = |value| Constant { value, estimated: false };
        let scaled = |value| Constant { value, estimated: true };
        assert_eq!(half.constants, [given(rate), scaled(0.886), given(30.0), scaled(32.0)]);
        let both = one("chunk_tokens = 8_192\npeak_prefill_tokens_per_s = 10_240.0\n");
        assert!((both.constants[3].value / 32.0 - 1.0).abs() < 1e-3, "{both:?}");
        assert!(both.constants.iter().all(|constant| constant.estimated));
    }

    #[test]
    fn everything_wrong_is_said_at_once_with_its_line_and_what_was_meant() {
        let text = format!(
            "colour = 1\n{ROW}prefil_tokens_per_s = 5\nttft_floor_ms = 0\ndecode_step_ms = nan\nchunk_tokens = 1.5\n\
             [[calibration]]\nname = \"Not Good\"\nengine = \"\"\ntensor_parallel = 0x10\nprefill_tokens_per_s = -1\n"
        );
        let said = parse(&text).unwrap_err().join("\n");
        for part in [
            "line 1: expected only rows that begin with [[calibration]], not colour",
            "line 9: there is no prefil_tokens_per_s in a calibration; did you mean prefill_tokens_per_s?",
            "line 10: ttft_floor_ms should be a number from 0.000001 to 1000000; leave out what is not known",
            "line 11: decode_step_ms should be a number",
            "line 12: chunk_tokens should be a whole number from 1 to 100000000",
            "line 2: a calibration needs peak_prefill_tokens_per_s or prefill_tokens_per_s",
            "line 2: peak_prefill_tokens_per_s and chunk_tokens go together",
            "line 14: name should be 1 to 64 small letters, digits, dots and dashes",
            "line 15: engine should be a text of one line",
            "line 16: tensor_parallel should be a whole number from 1 to 4096",
            "line 17: prefill_tokens_per_s should be a number from 1 to 1000000000",
            "line 13: a calibration needs model",
            "line 13: a calibration needs source",
        ] {
            assert!(said.contains(part), "{part} is not in\n{said}");
        }
        let twice = format!("{ROW}prefill_tokens_per_s = 5\n{ROW}prefill_tokens_per_s = 6\n");
        assert_eq!(parse(&twice).unwrap_err(), ["line 9: there are two calibrations called mine"]);
        assert_eq!(parse("").unwrap_err(), ["line 1: there is no [[calibration]] in it"]);
        assert_eq!(parse("calibration = [1]").unwrap_err().len(), 1);
        assert!(parse("\n\n[[calibration]\n").unwrap_err()[0].starts_with("line 3: it is not TOML: "));
    }

    #[test]
    fn a_name_a_file_and_a_row_of_a_file() {
        assert_eq!(find("qwen3-32b-h100-vllm-tp2").unwrap().peak_prefill_tokens_per_s, Some(15_928.0));
        let said = find("qwen3-32b-h100-vlm-tp2").unwrap_err().join("");
        assert!(
            said.contains("did you mean qwen3-32b-h100-vllm-tp2?") && said.contains("--list-calibrations"),
            "{said}"
        );
        assert!(!find("xyz").unwrap_err()[0].contains("did you mean"));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mine.toml");
        let path = file.display();
        let row = |rate: u32| format!("{ROW}prefill_tokens_per_s = {rate}\n");
        std::fs::write(&file, row(5000)).unwrap();
        assert_eq!(find(&path.to_string()).unwrap().constants[0].value, 5000.0);
        std::fs::write(&file, format!("{}{}", row(5000), row(6000).replace("mine", "other"))).unwrap();
        assert_eq!(find(&format!("{path}#other")).unwrap().constants[0].value, 6000.0);
        let said = find(&path.to_string()).unwrap_err().join("");
        assert!(said.contains("has several calibrations; give") && said.contains("one of mine, other"), "{said}");
        assert!(
            find(&format!("{path}#third")).unwrap_err()[0].contains("has no calibration \"third\"; it has mine, other")
        );
        std::fs::write(&file, "[[calibration]]\n").unwrap();
        let said = find(&path.to_string()).unwrap_err();
        assert!(said.len() == 7 && said.iter().all(|line| line.contains("mine.toml, line 1: ")), "{said:?}");
        std::fs::write(&file, vec![b'#'; FILE_BYTES_MAX as usize + 1]).unwrap();
        assert!(find(&path.to_string()).unwrap_err()[0].contains("it is larger than 1048576 bytes"));
        assert!(find("/nowhere/x.toml").unwrap_err()[0].contains("cannot be read: No such file"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(\\[\\[calibration\\]\\]|name|=|\"|[a-z_]{1,9}|[0-9.e+-]{1,5}|\n|\\PC){0,40}") {
            let _ = parse(&text);
        }

        /// Whatever a row gives stands as given; all constants are usable; a slower engine is slower in every one.
        #[test]
        fn constants_are_usable_and_ordered(
            rate in 1.0..1e9f64, tokens in 1..1_000_000u32, given in prop::array::uniform3(prop::option::of(1e-6..1e6f64)),
        ) {
            let mut numbers = format!("chunk_tokens = {tokens}\npeak_prefill_tokens_per_s = {rate:?}\n");
            for (key, value) in CALIBRATED.iter().skip(1).zip(given) {
                if let Some(value) = value {
                    numbers.push_str(&format!("{key} = {value:?}\n"));
                }
            }
            let row = one(&numbers);
            for (constant, given) in row.constants.iter().skip(1).zip(given) {
                prop_assert_eq!(constant.estimated, given.is_none());
                prop_assert!(given.is_none_or(|given| given == constant.value));
            }
            prop_assert!(row.constants.iter().all(|constant| constant.value.is_finite() && constant.value > 0.0));
            if rate >= 2.0 {
                let slower = one(&format!("chunk_tokens = {tokens}\npeak_prefill_tokens_per_s = {:?}\n", rate / 2.0));
                prop_assert!(slower.constants[0].value < row.constants[0].value);
                for index in 1..4 {
                    prop_assert!(!row.constants[index].estimated || slower.constants[index].value > row.constants[index].value);
                }
            }
        }
    }
}
