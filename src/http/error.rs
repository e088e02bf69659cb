//! Every way a call can fail, as a status and a body of at most 2 kB: the one place where errors become answers.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};

use super::batch::BadRow;
use super::json::Malformed;
use super::lax::Wrong;
use super::rows::{Fault, allowed};
use crate::service::Unavailable;

/// Largest error body, bytes, however many rows are bad.
pub const ERROR_BYTES_MAX: usize = 2_000;

/// Items of a 422 answer at the most.
const ITEMS_MAX: usize = 6;

/// A failed call.
#[derive(Debug)]
pub enum Problem {
    /// The body is not readable bytes of JSON (wrong encoding, not UTF-8).
    UnreadableBody(String),
    /// The body is not JSON.
    Json(Malformed),
    /// There is no body.
    NoBody,
    /// The body is no JSON object.
    NotAnObject(&'static str),
    /// The body is not declared as JSON, and so counts as text; its beginning.
    NotDeclaredJson(String),
    /// The list is absent, no list, too short or too long.
    List {
        /// Name of the list.
        field: &'static str,
        /// What is wrong.
        wrong: ListWrong,
    },
    /// Rows with faults.
    Rows {
        /// Name of the list; `None` for a single row.
        field: Option<&'static str>,
        /// The bad rows that are told.
        bad: Vec<BadRow>,
        /// All bad rows.
        bad_total: usize,
    },
    /// A fault outside the rows.
    Field(Fault),
    /// A part of the query that cannot be read.
    Query {
        /// Its name.
        field: &'static str,
        /// What it should be.
        hint: &'static str,
    },
    /// Nothing can be predicted yet.
    NotReady(String),
    /// Not possible in this role, or not now.
    Unavailable(Unavailable),
    /// No such thing.
    NotFound(String),
    /// Known path, wrong method.
    MethodNotAllowed,
    /// Wrong or missing token.
    Unauthorized(&'static str),
    /// The body is larger than the limit.
    TooLarge {
        /// The limit, bytes.
        limit: usize,
    },
    /// A content encoding we do not read.
    UnsupportedEncoding(String),
    /// More calls at once than the limit, or more bytes of bodies.
    Overloaded,
    /// The body did not arrive in time.
    BodyTooSlow {
        /// The limit, ms.
        limit_ms: u64,
    },
    /// The answer was not ready in time; nothing was changed.
    TimedOut {
        /// The limit, ms.
        limit_ms: u64,
    },
    /// A panic: ours to mend, this call's alone.
    Internal,
}

/// What can be wrong with a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListWrong {
    /// Not there.
    Missing,
    /// Not an array.
    NotAList,
    /// Empty where a row is needed.
    TooShort,
    /// More rows than the limit.
    TooLong {
        /// The limit.
        max: usize,
        /// Rows there were.
        rows: usize,
    },
}

impl Problem {
    /// The status.
    pub fn status(&self) -> StatusCode {
        match self {
            Problem::UnreadableBody(_) => StatusCode::BAD_REQUEST,
            Problem::Json(_)
            | Problem::NoBody
            | Problem::NotAnObject(_)
            | Problem::NotDeclaredJson(_)
            | Problem::List { .. }
            | Problem::Rows { .. }
            | Problem::Query { .. }
            | Problem::Field(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Problem::NotReady(_) | Problem::Unavailable(_) | Problem::Overloaded | Problem::TimedOut { .. } => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Problem::NotFound(_) => StatusCode::NOT_FOUND,
            Problem::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Problem::Unauthorized(_) => StatusCode::UNAUTHORIZED,
            Problem::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Problem::UnsupportedEncoding(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Problem::BodyTooSlow { .. } => StatusCode::REQUEST_TIMEOUT,
            Problem::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn body(&self) -> Vec<u8> {
        match self {
            Problem::Json(malformed) => item(json!({
                "type": "json_invalid", "loc": ["body", malformed.offset], "msg": "JSON decode error",
                "input": {}, "ctx": { "error": malformed.reason }
            })),
            Problem::NoBody => {
                item(json!({ "type": "missing", "loc": ["body"], "msg": "Field required", "input": null }))
            }
            Problem::NotAnObject(hint) => item(not_an_object(hint, Value::Null)),
            Problem::NotDeclaredJson(text) => {
                item(not_an_object("send content-type: application/json", text.as_str().into()))
            }
            Problem::List { field, wrong } => item(list_item(field, *wrong)),
            Problem::Rows { field, bad, bad_total } => row_items(*field, bad, *bad_total),
            Problem::Query { field, hint } => item(json!({
                "type": "int_parsing", "loc": ["query", field], "msg": format!("{} should be {hint}", field), "input": null
            })),
            Problem::Field(fault) => item(fault_item(None, 0, fault)),
            other => detail(&other.text()),
        }
    }

    fn text(&self) -> String {
        match self {
            Problem::UnreadableBody(reason) => format!("There was an error parsing the body: {reason}"),
            Problem::NotReady(reason) => format!("Models not ready: {reason}"),
            // Who the trainer is is not for every caller (see `redact`).
            Problem::Unavailable(Unavailable::PredictOnly { .. }) => {
                "this instance only predicts; ask its trainer".to_string()
            }
            Problem::Unavailable(unavailable @ Unavailable::TrainerBusy(_)) => unavailable.to_string(),
            Problem::NotFound(what) => what.clone(),
            Problem::MethodNotAllowed => "Method Not Allowed".to_string(),
            Problem::Unauthorized(setting) => {
                format!("this call needs the header authorization: Bearer <{setting}>")
            }
            Problem::TooLarge { limit } => {
                format!("the body is larger than the limit of {limit} bytes; send fewer rows per call")
            }
            Problem::UnsupportedEncoding(encoding) => {
                format!("content-encoding {encoding} is not read here; use gzip, zstd or none")
            }
            Problem::Overloaded => "more calls at once than this process takes; try again".to_string(),
            Problem::BodyTooSlow { limit_ms } => format!("the body did not arrive within {limit_ms} ms"),
            Problem::TimedOut { limit_ms } => format!("the call took longer than {limit_ms} ms; nothing was changed"),
            Problem::Internal => "Internal Server Error: this call failed inside; please report it".to_string(),
            Problem::Json(_)
            | Problem::NoBody
            | Problem::NotAnObject(_)
            | Problem::NotDeclaredJson(_)
            | Problem::List { .. }
            | Problem::Rows { .. }
            | Problem::Query { .. }
            | Problem::Field(_) => String::new(),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.status();
        let mut response = json_bytes(status, self.body());
        if matches!(self, Problem::Overloaded) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if matches!(self, Problem::Unauthorized(_)) {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if matches!(self, Problem::TooLarge { .. } | Problem::BodyTooSlow { .. }) {
            // The rest of the body is not read, so the connection cannot carry another call.
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

impl From<Unavailable> for Problem {
    fn from(unavailable: Unavailable) -> Self {
        Problem::Unavailable(unavailable)
    }
}

impl From<Malformed> for Problem {
    fn from(malformed: Malformed) -> Self {
        Problem::Json(malformed)
    }
}

/// An answer of JSON bytes.
pub fn json_bytes(status: StatusCode, body: Vec<u8>) -> Response {
    (status, [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}

/// An answer of one serialisable value.
pub fn json_answer(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => json_bytes(status, body),
        // Only a map with a non-text key can fail, and there is none; said rather than hidden all the same.
        Err(error) => json_bytes(StatusCode::INTERNAL_SERVER_ERROR, detail(&error.to_string())),
    }
}

fn detail(text: &str) -> Vec<u8> {
    json!({ "detail": text.chars().take(400).collect::<String>() }).to_string().into_bytes()
}

fn item(item: Value) -> Vec<u8> {
    json!({ "detail": [item] }).to_string().into_bytes()
}

/// As many of the first faults as fit, and how many rows are bad in all.
fn row_items(list: Option<&str>, bad: &[BadRow], bad_total: usize) -> Vec<u8> {
    let faults = bad.iter().flat_map(|row| row.faults.iter().map(|fault| fault_item(list, row.index, fault)));
    let mut shown: Vec<Value> = faults.take(ITEMS_MAX).collect();
    loop {
        let body = match list {
            Some(_) => json!({ "detail": shown, "bad_rows": bad_total }),
            None => json!({ "detail": shown }),
        };
        let body = body.to_string().into_bytes();
        if body.len() <= ERROR_BYTES_MAX || shown.len() <= 1 {
            return body;
        }
        shown.pop();
    }
}

fn not_an_object(hint: &str, input: Value) -> Value {
    json!({
        "type": Wrong::NotAnObject.kind(), "loc": ["body"], "msg": format!("{} ({hint})", Wrong::NotAnObject),
        "input": input
    })
}

/// One fault in the wire's shape, with the allowed range where the field has one.
pub fn fault_item(list: Option<&str>, index: usize, fault: &Fault) -> Value {
    let mut loc = vec![Value::from("body")];
    if let Some(list) = list {
        loc.push(list.into());
        loc.push(index.into());
    }
    if !fault.field.is_empty() {
        loc.push(fault.field.into());
    }
    let mut item = json!({ "type": fault.wrong.kind(), "loc": loc, "msg": message(fault), "input": fault.input });
    if let Some([min, max]) = allowed(fault.field) {
        item["ctx"] = json!({ "ge": min, "le": max });
    }
    item
}

/// What is wrong with a field, its allowed range, and a hint where one mistake is likelier than others.
pub fn message(fault: &Fault) -> String {
    let range = allowed(fault.field).map(|[min, max]| format!(" (allowed: {min} to {max})")).unwrap_or_default();
    let hint = match (fault.field, fault.wrong) {
        ("kv_cache_percentage", Wrong::Above(_)) => "; it is a fraction: divide a percentage by 100",
        _ => "",
    };
    format!("{}{range}{hint}", fault.wrong)
}

/// The bad rows of a call whose good rows were taken: one entry per row, in full while `bytes` allows, the later ones
/// with no more than position, field and kind.
pub fn told(list: &str, bad: &[BadRow], bytes: usize) -> Vec<Value> {
    let entry = |row: &BadRow, in_full: bool| {
        let fault = row.faults.first()?;
        let mut item =
            if in_full { fault_item(Some(list), row.index, fault) } else { json!({ "type": fault.wrong.kind() }) };
        item["index"] = row.index.into();
        item["field"] = fault.field.into();
        Some(item)
    };
    let mut entries: Vec<Value> = bad.iter().filter_map(|row| entry(row, true)).collect();
    let mut size: usize = entries.iter().map(|item| item.to_string().len() + 1).sum();
    for (row, item) in bad.iter().zip(entries.iter_mut()).rev() {
        if size <= bytes {
            break;
        }
        let Some(short) = entry(row, false) else { continue };
        size -= item.to_string().len() - short.to_string().len();
        *item = short;
    }
    entries
}

fn list_item(field: &str, wrong: ListWrong) -> Value {
    let loc = json!(["body", field]);
    match wrong {
        ListWrong::Missing => json!({ "type": "missing", "loc": loc, "msg": "Field required", "input": null }),
        ListWrong::NotAList => {
            json!({ "type": "list_type", "loc": loc, "msg": "Input should be a valid list", "input": null })
        }
        ListWrong::TooShort => json!({
            "type": "too_short", "loc": loc, "msg": "List should have at least 1 item after validation, not 0",
            "input": [], "ctx": { "field_type": "List", "min_length": 1, "actual_length": 0 }
        }),
        ListWrong::TooLong { max, rows } => json!({
            "type": "too_long", "loc": loc,
            "msg": format!("List should have at most {max} items after validation, not {rows}"),
            "input": null, "ctx": { "field_type": "List", "max_length": max, "actual_length": rows }
        }),
    }
}
