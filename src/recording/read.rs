//! Reading a recording: CSV or JSON lines, plain, gzip or zstd. A bad row is named and skipped; a wrong column is an error.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};

use crate::types::{EndpointName, Features, LATENCY_MS_MAX, LATENCY_MS_MIN, LIMITS, Role, UnixMs};

/// Largest recording that is read, bytes after decompression.
const BYTES_MAX: u64 = 2 << 30;

/// Bad rows that are named; more are counted.
const BAD_ROWS_NAMED: usize = 10;

/// One request as it was recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedRequest {
    /// Position among the file's rows, from 0; skipped rows count.
    pub row: usize,
    /// Index into [`Recording::runs`].
    pub run: usize,
    /// When it was dispatched; `None` when the recording has no times.
    pub dispatched_at: Option<UnixMs>,
    /// When its TTFT became known.
    pub first_token_at: Option<UnixMs>,
    /// When its TPOT became known.
    pub finished_at: Option<UnixMs>,
    /// What was known at dispatch.
    pub features: Features,
    /// Where it was served.
    pub endpoint: Option<EndpointName>,
    /// Observed TTFT, ms.
    pub ttft_ms: Option<f64>,
    /// Observed TPOT, ms.
    pub tpot_ms: Option<f64>,
    /// Output tokens; 0 when unknown.
    pub output_tokens: u32,
    /// The incumbent algorithm's predictions at dispatch, ms: TTFT p90, TTFT p50, TPOT p90.
    pub incumbent_ms: [Option<f64>; 3],
}

/// A whole file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// Requests in file order.
    pub rows: Vec<RecordedRequest>,
    /// Names of the runs; one empty name when the file has no runs.
    pub runs: Vec<String>,
    /// Inputs the file has no column for: left out, that is 0 for every row.
    pub absent: Vec<&'static str>,
    /// Rows that were skipped.
    pub skipped: usize,
    /// The first of them, each with line, column, value and range.
    pub notices: Vec<String>,
}

/// Why a file is no recording.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The bytes cannot be read or decompressed.
    #[error("cannot read it: {0}")]
    Io(#[from] std::io::Error),
    /// A column nobody knows.
    #[error("line {line}: unknown column {column:?}{hint}")]
    UnknownColumn {
        /// Line, from 1.
        line: usize,
        /// As it stands there.
        column: String,
        /// `; did you mean ..?`, or empty.
        hint: String,
    },
    /// A column that every recording needs.
    #[error("line {line}: there is no column {column}")]
    MissingColumn {
        /// Line of the header, from 1.
        line: usize,
        /// What is missing.
        column: &'static str,
    },
    /// A line that is not CSV or JSON.
    #[error("line {line}: {reason}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// Nothing usable in it.
    #[error("there is no usable row{0}")]
    Empty(String),
}

/// What a column feeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Field {
    DispatchedMs,
    DispatchedS,
    FirstTokenMs,
    FinishedMs,
    EndToEndMs,
    InputTokens,
    PrefixScore,
    Waiting,
    Running,
    KvUsage,
    PrefillInFlight,
    DecodeInFlight,
    EncoderMatched,
    EncoderInput,
    OutputTokens,
    TtftMs,
    TpotMs,
    IncumbentTtft90,
    IncumbentTtft50,
    IncumbentTpot90,
    Run,
    Role,
    Endpoint,
    Time,
    /// Known and not used.
    Ignored,
}

/// Column names, the wire's and those of recordings by load generators.
const COLUMNS: &[(&str, Field)] = &[
    ("dispatched_ms", Field::DispatchedMs),
    ("arrival_s", Field::DispatchedS),
    ("first_token_ms", Field::FirstTokenMs),
    ("finished_ms", Field::FinishedMs),
    ("e2e_ms", Field::EndToEndMs),
    ("input_token_length", Field::InputTokens),
    ("prompt_tokens", Field::InputTokens),
    ("prefix_cache_score", Field::PrefixScore),
    ("num_request_waiting", Field::Waiting),
    ("prefill_requests_in_flight", Field::Waiting),
    ("num_request_running", Field::Running),
    ("decode_requests_in_flight", Field::Running),
    ("kv_cache_percentage", Field::KvUsage),
    ("prefill_tokens_in_flight", Field::PrefillInFlight),
    ("decode_tokens_in_flight", Field::DecodeInFlight),
    ("encoder_matched_size", Field::EncoderMatched),
    ("encoder_input_size", Field::EncoderInput),
    ("num_tokens_generated", Field::OutputTokens),
    ("output_tokens", Field::OutputTokens),
    ("actual_ttft_ms", Field::TtftMs),
    ("ttft_ms", Field::TtftMs),
    ("actual_tpot_ms", Field::TpotMs),
    ("tpot_ms", Field::TpotMs),
    ("incumbent_ttft_p90_ms", Field::IncumbentTtft90),
    ("incumbent_ttft_p50_ms", Field::IncumbentTtft50),
    ("incumbent_tpot_p90_ms", Field::IncumbentTpot90),
    ("run_id", Field::Run),
    ("pod_type", Field::Role),
    ("endpoint", Field::Endpoint),
    ("timestamp", Field::Time),
    ("model", Field::Ignored),
    ("accelerator", Field::Ignored),
    ("tp", Field::Ignored),
    ("queue_ms", Field::Ignored),
    ("in_flight_requests", Field::Ignored),
];

/// Inputs that are left out when their column is absent.
const INPUTS: &[(Field, &str)] = &[
    (Field::PrefixScore, "prefix_cache_score"),
    (Field::Waiting, "num_request_waiting"),
    (Field::Running, "num_request_running"),
    (Field::KvUsage, "kv_cache_percentage"),
    (Field::PrefillInFlight, "prefill_tokens_in_flight"),
    (Field::DecodeInFlight, "decode_tokens_in_flight"),
];

/// Reads a recording.
///
/// # Errors
/// See [`ReadError`].
pub fn read(input: impl Read) -> Result<Recording, ReadError> {
    let mut input = BufReader::new(input);
    let magic = input.fill_buf()?.to_vec();
    let plain: Box<dyn BufRead + '_> = if magic.starts_with(&[0x1f, 0x8b]) {
        Box::new(BufReader::new(flate2::bufread::MultiGzDecoder::new(input).take(BYTES_MAX)))
    } else if magic.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        let decoder = ruzstd::decoding::StreamingDecoder::new(input).map_err(std::io::Error::other)?;
        Box::new(BufReader::new(decoder.take(BYTES_MAX)))
    } else {
        Box::new(input.take(BYTES_MAX))
    };
    let mut plain = plain;
    let first = loop {
        match plain.fill_buf()?.first() {
            Some(byte) if byte.is_ascii_whitespace() => plain.consume(1),
            other => break other.copied(),
        }
    };
    match first {
        None => Err(ReadError::Empty(": the file is empty".to_string())),
        Some(b'{') => read_json_lines(plain),
        Some(_) => read_csv(plain),
    }
}

fn field_of(name: &str, line: usize) -> Result<Field, ReadError> {
    COLUMNS.iter().find(|(known, _)| *known == name).map(|(_, field)| *field).ok_or_else(|| {
        let nearest = COLUMNS
            .iter()
            .map(|(known, _)| (strsim::jaro_winkler(name, known), *known))
            .filter(|(likeness, _)| *likeness > 0.75)
            .max_by(|a, b| a.0.total_cmp(&b.0));
        let hint = nearest.map_or(String::new(), |(_, known)| format!("; did you mean {known}?"));
        ReadError::UnknownColumn { line, column: name.chars().take(60).collect(), hint }
    })
}

fn read_csv(input: impl Read) -> Result<Recording, ReadError> {
    let mut reader = csv::ReaderBuilder::new().flexible(false).from_reader(input);
    let syntax = |error: csv::Error| {
        let line = error.position().map_or(1, |position| position.line() as usize);
        match error.into_kind() {
            csv::ErrorKind::Io(error) => ReadError::Io(error),
            csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
                ReadError::Syntax { line, reason: format!("{len} values where the header has {expected_len} columns") }
            }
            _ => ReadError::Syntax { line, reason: "not CSV in UTF-8".to_string() },
        }
    };
    let header = reader.headers().map_err(syntax)?.clone();
    let fields: Vec<Field> = header.iter().map(|name| field_of(name.trim(), 1)).collect::<Result<_, _>>()?;
    let mut builder = Builder::new(&fields, 1)?;
    for record in reader.records() {
        let record = record.map_err(syntax)?;
        let line = record.position().map_or(0, |position| position.line() as usize);
        let values = fields.iter().zip(record.iter()).map(|(field, value)| (*field, value.trim().to_string()));
        builder.row(line, values);
    }
    builder.finish()
}

fn read_json_lines(input: impl BufRead) -> Result<Recording, ReadError> {
    let mut builder: Option<Builder> = None;
    for (index, text) in input.lines().enumerate() {
        let (line, text) = (index + 1, text?);
        if text.trim().is_empty() {
            continue;
        }
        let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text)
            .map_err(|error| ReadError::Syntax { line, reason: format!("not a JSON object: {error}") })?;
        let mut values = Vec::new();
        for (name, value) in object {
            let text = match value {
                serde_json::Value::Null => String::new(),
                serde_json::Value::String(text) => text,
                other => other.to_string(),
            };
            values.push((field_of(&name, line)?, text));
        }
        let known = match &mut builder {
            Some(builder) => builder,
            empty => {
                let fields: Vec<Field> = values.iter().map(|(field, _)| *field).collect();
                empty.insert(Builder::new(&fields, line)?)
            }
        };
        known.row(line, values.into_iter());
    }
    builder.ok_or_else(|| ReadError::Empty(String::new()))?.finish()
}

/// Builds rows and keeps the books about what was skipped.
struct Builder {
    recording: Recording,
    runs: BTreeMap<String, usize>,
    /// Final lengths of other requests are unknown at dispatch: this dialect's decode tokens are not an input.
    knows_final_lengths: bool,
}

/// One row's values by field, and the first thing wrong with them.
struct Values {
    texts: BTreeMap<Field, String>,
    wrong: Option<String>,
}

impl Values {
    fn text(&self, field: Field) -> &str {
        self.texts.get(&field).map_or("", String::as_str)
    }

    fn number(&mut self, field: Field, min: f64, max: f64) -> Option<f64> {
        let text = self.text(field);
        if text.is_empty() {
            return None;
        }
        match text.parse::<f64>() {
            Ok(value) if (min..=max).contains(&value) => Some(value),
            _ => {
                let name = COLUMNS.iter().find(|(_, of)| *of == field).map_or("?", |(name, _)| *name);
                let shown: String = text.chars().take(30).collect();
                self.wrong.get_or_insert_with(|| format!("{name} is {shown:?}, not a number from {min} to {max}"));
                None
            }
        }
    }

    fn count(&mut self, field: Field, max: u32) -> u32 {
        self.number(field, 0.0, f64::from(max)).unwrap_or(0.0).round() as u32
    }

    /// 0 and empty mean not observed.
    fn latency(&mut self, field: Field) -> Option<f64> {
        let ms = self.number(field, 0.0, LATENCY_MS_MAX)?;
        (ms >= LATENCY_MS_MIN).then_some(ms)
    }
}

impl Builder {
    fn new(fields: &[Field], line: usize) -> Result<Self, ReadError> {
        let has = |field: Field| fields.contains(&field);
        if !has(Field::InputTokens) {
            return Err(ReadError::MissingColumn { line, column: "input_token_length (or prompt_tokens)" });
        }
        if !has(Field::TtftMs) && !has(Field::TpotMs) {
            return Err(ReadError::MissingColumn { line, column: "actual_ttft_ms (or ttft_ms), nor actual_tpot_ms" });
        }
        let knows_final_lengths = has(Field::DispatchedS);
        let absent = INPUTS
            .iter()
            .filter(|(field, _)| !has(*field) || (knows_final_lengths && *field == Field::DecodeInFlight))
            .map(|(_, name)| *name)
            .collect();
        let recording = Recording { absent, ..Recording::default() };
        Ok(Builder { recording, runs: BTreeMap::new(), knows_final_lengths })
    }

    fn row(&mut self, line: usize, values: impl Iterator<Item = (Field, String)>) {
        let mut values = Values { texts: values.collect(), wrong: None };
        let row = self.build(&mut values);
        match values.wrong {
            None => self.recording.rows.push(row),
            Some(wrong) => {
                self.recording.skipped += 1;
                if self.recording.notices.len() < BAD_ROWS_NAMED {
                    self.recording.notices.push(format!("line {line} skipped: {wrong}"));
                }
            }
        }
    }

    fn build(&mut self, values: &mut Values) -> RecordedRequest {
        let in_flight = LIMITS.tokens_in_flight_max;
        let encoder_input = values.count(Field::EncoderInput, LIMITS.encoder_size_max);
        if values.text(Field::InputTokens).is_empty() {
            values.wrong.get_or_insert_with(|| "input_token_length is empty".to_string());
        }
        let features = Features {
            kv_cache_usage: values.number(Field::KvUsage, 0.0, 1.0).unwrap_or(0.0),
            input_tokens: values.count(Field::InputTokens, LIMITS.input_tokens_max),
            requests_waiting: values.count(Field::Waiting, LIMITS.requests_max),
            requests_running: values.count(Field::Running, LIMITS.requests_max),
            prefix_cache_score: values.number(Field::PrefixScore, 0.0, 1.0).unwrap_or(0.0),
            prefill_tokens_in_flight: values.count(Field::PrefillInFlight, in_flight),
            decode_tokens_in_flight: if self.knows_final_lengths {
                0
            } else {
                values.count(Field::DecodeInFlight, in_flight)
            },
            encoder_matched_size: values.count(Field::EncoderMatched, LIMITS.encoder_size_max).min(encoder_input),
            encoder_input_size: encoder_input,
            role: Role::from_wire(values.text(Field::Role)).0,
        };
        let ttft_ms = values.latency(Field::TtftMs);
        let tpot_ms = values.latency(Field::TpotMs);
        let output_tokens = values.count(Field::OutputTokens, LIMITS.output_tokens_max);
        let wide = 1e15;
        let dispatched_ms = values
            .number(Field::DispatchedMs, -wide, wide)
            .or(values.number(Field::DispatchedS, -wide, wide).map(|s| s * 1e3));
        let decode_ms = tpot_ms.map(|tpot| tpot * f64::from(output_tokens.max(1) - 1));
        let first_ms = values
            .number(Field::FirstTokenMs, -wide, wide)
            .or(dispatched_ms.zip(ttft_ms).map(|(dispatched, ttft)| dispatched + ttft));
        let end_to_end_ms = values.number(Field::EndToEndMs, 0.0, wide);
        let finished_ms = values
            .number(Field::FinishedMs, -wide, wide)
            .or(dispatched_ms.zip(end_to_end_ms).map(|(dispatched, whole)| dispatched + whole))
            .or(first_ms.zip(decode_ms).map(|(first, decode)| first + decode));
        let run = self.run(values.text(Field::Run).to_string());
        // A label is visible once its millisecond is over, a prediction is asked at the start of its own.
        let at = |ms: Option<f64>| ms.map(|ms| UnixMs(ms.ceil() as i64));
        RecordedRequest {
            row: self.recording.rows.len() + self.recording.skipped,
            run,
            dispatched_at: dispatched_ms.map(|ms| UnixMs(ms.floor() as i64)),
            first_token_at: at(first_ms),
            finished_at: at(finished_ms),
            features,
            endpoint: EndpointName::try_new(values.text(Field::Endpoint)),
            ttft_ms,
            tpot_ms,
            output_tokens,
            incumbent_ms: [Field::IncumbentTtft90, Field::IncumbentTtft50, Field::IncumbentTpot90]
                .map(|field| values.number(field, 0.0, LATENCY_MS_MAX)),
        }
    }

    fn run(&mut self, name: String) -> usize {
        let next = self.runs.len();
        let runs = &mut self.recording.runs;
        *self.runs.entry(name).or_insert_with_key(|name| {
            runs.push(name.clone());
            next
        })
    }

    fn finish(self) -> Result<Recording, ReadError> {
        if self.recording.rows.is_empty() {
            let first = self.recording.notices.first().map_or(String::new(), |line| format!(": {line}"));
            return Err(ReadError::Empty(first));
        }
        Ok(self.recording)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const CSV: &str = "input_token_length,num_request_waiting,actual_ttft_ms,actual_tpot_ms\n100,1,50,0\n200,0,0,20\n";

    #[test]
    fn csv_json_lines_gzip_and_plain_read_the_same() {
        let plain = read(CSV.as_bytes()).unwrap();
        assert_eq!(plain.rows.len(), 2);
        assert_eq!((plain.rows[0].ttft_ms, plain.rows[0].tpot_ms), (Some(50.0), None));
        assert!(plain.absent.contains(&"kv_cache_percentage"));
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(CSV.as_bytes()).unwrap();
        assert_eq!(read(gz.finish().unwrap().as_slice()).unwrap(), plain);
        let json = "{\"input_token_length\":100,\"num_request_waiting\":1,\"actual_ttft_ms\":50,\"actual_tpot_ms\":0}\n\n{\"input_token_length\":200,\"num_request_waiting\":0,\"actual_ttft_ms\":0,\"actual_tpot_ms\":20}\n";
        assert_eq!(read(json.as_bytes()).unwrap(), plain);
        let zst = ruzstd::encoding::compress_to_vec(CSV.as_bytes(), ruzstd::encoding::CompressionLevel::Fastest);
        assert_eq!(read(zst.as_slice()).unwrap(), plain);
    }

    #[test]
    fn wrong_columns_are_named_with_their_line() {
        let error = read("input_token_lenght,ttft_ms\n1,2\n".as_bytes()).unwrap_err().to_string();
        assert_eq!(error, "line 1: unknown column \"input_token_lenght\"; did you mean input_token_length?");
        let error = read("prompt_tokens\n1\n".as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("line 1: there is no column actual_ttft_ms"), "{error}");
        let error = read("{\"prompt_tokens\":1,\"ttft_ms\":2}\n{\"prompt_tokens\":1,\"colour\":2}".as_bytes());
        assert!(error.unwrap_err().to_string().starts_with("line 2: unknown column \"colour\""));
    }

    #[test]
    fn a_bad_row_costs_only_itself() {
        let text = "prompt_tokens,ttft_ms\n100,50\n-5,50\n100,abc\n100,inf\n300,60\n";
        let recording = read(text.as_bytes()).unwrap();
        assert_eq!((recording.rows.len(), recording.skipped), (2, 3));
        assert_eq!(
            recording.notices[0],
            "line 3 skipped: input_token_length is \"-5\", not a number from 0 to 100000000"
        );
        assert!(recording.notices[1].starts_with("line 4 skipped: actual_ttft_ms is \"abc\""));
        let error = read("prompt_tokens,ttft_ms\n-5,50\n".as_bytes()).unwrap_err().to_string();
        assert!(error.contains("no usable row: line 2 skipped"), "{error}");
    }

    #[test]
    fn empty_ragged_and_cut_files_say_so() {
        assert!(matches!(read("".as_bytes()), Err(ReadError::Empty(_))));
        let ragged = read("prompt_tokens,ttft_ms\n1\n".as_bytes()).unwrap_err().to_string();
        assert_eq!(ragged, "line 2: 1 values where the header has 2 columns");
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(CSV.repeat(50).as_bytes()).unwrap();
        let bytes = gz.finish().unwrap();
        assert!(matches!(read(&bytes[..bytes.len() / 2]), Err(ReadError::Io(_))));
    }

    #[test]
    fn final_lengths_are_not_fed_to_a_predictor() {
        let text = "arrival_s,prompt_tokens,output_tokens,ttft_ms,tpot_ms,e2e_ms,decode_tokens_in_flight\n1.5,10,3,100,20,140,999\n";
        let recording = read(text.as_bytes()).unwrap();
        let row = &recording.rows[0];
        assert_eq!(row.features.decode_tokens_in_flight, 0);
        assert!(recording.absent.contains(&"decode_tokens_in_flight"));
        assert_eq!(row.dispatched_at, Some(UnixMs(1500)));
        assert_eq!(row.first_token_at, Some(UnixMs(1600)));
        assert_eq!(row.finished_at, Some(UnixMs(1640)));
    }
}
