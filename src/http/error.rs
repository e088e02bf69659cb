//! Every way a call can fail, as a status and a body of at most 2 kB: the one place where errors become answers.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};

use super::json::Malformed;
use super::lax::Wrong;
use super::rows::{BadRow, Fault};
use crate::service::Unavailable;

/// Largest error body, bytes.
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
    /// The body is no JSON object, or not declared as JSON.
    NotAnObject(&'static str),
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
    /// More calls at once than the limit.
    Overloaded,
    /// The call took longer than the limit.
    TimedOut {
        /// The limit, ms.
        limit_ms: u64,
    },
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
            | Problem::NotAnObject(_)
            | Problem::List { .. }
            | Problem::Rows { .. }
            | Problem::Field(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Problem::NotReady(_) | Problem::Unavailable(_) | Problem::Overloaded | Problem::TimedOut { .. } => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Problem::NotFound(_) => StatusCode::NOT_FOUND,
            Problem::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Problem::Unauthorized(_) => StatusCode::UNAUTHORIZED,
            Problem::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Problem::UnsupportedEncoding(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        }
    }

    fn body(&self) -> Vec<u8> {
        match self {
            Problem::Json(malformed) => items(
                vec![json!({
                    "type": "json_invalid", "loc": ["body", malformed.offset], "msg": "JSON decode error",
                    "input": {}, "ctx": {"error": malformed.reason}
                })],
                1,
            ),
            Problem::NotAnObject(hint) => items(
                vec![json!({
                    "type": "model_attributes_type", "loc": ["body"],
                    "msg": format!("{} ({hint})", Wrong::NotAnObject), "input": null
                })],
                1,
            ),
            Problem::List { field, wrong } => items(vec![list_item(field, *wrong)], 1),
            Problem::Rows { field, bad, bad_total } => {
                let all: Vec<Value> = bad
                    .iter()
                    .flat_map(|row| row.faults.iter().map(move |fault| fault_item(*field, row.index, fault)))
                    .take(ITEMS_MAX)
                    .collect();
                items(all, *bad_total)
            }
            Problem::Field(fault) => {
                let mut item = fault_item(None, 0, fault);
                item["loc"] = json!(["body", fault.field]);
                items(vec![item], 1)
            }
            other => detail(&other.text()),
        }
    }

    fn text(&self) -> String {
        match self {
            Problem::UnreadableBody(reason) => format!("There was an error parsing the body: {reason}"),
            Problem::NotReady(reason) => format!("Models not ready: {reason}"),
            Problem::Unavailable(unavailable) => unavailable.to_string(),
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
            Problem::TimedOut { limit_ms } => format!("the call took longer than {limit_ms} ms"),
            Problem::Json(_)
            | Problem::NotAnObject(_)
            | Problem::List { .. }
            | Problem::Rows { .. }
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
        if matches!(self, Problem::TooLarge { .. } | Problem::TimedOut { .. }) {
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

fn items(mut all: Vec<Value>, bad_total: usize) -> Vec<u8> {
    loop {
        let body = json!({ "detail": all, "bad_rows": bad_total }).to_string().into_bytes();
        if body.len() <= ERROR_BYTES_MAX || all.len() <= 1 {
            return body;
        }
        all.pop();
    }
}

/// One fault in the wire's shape.
pub fn fault_item(list: Option<&str>, index: usize, fault: &Fault) -> Value {
    let mut loc = vec![Value::from("body")];
    if let Some(list) = list {
        loc.push(list.into());
        loc.push(index.into());
    }
    if !fault.field.is_empty() {
        loc.push(fault.field.into());
    }
    let mut item = json!({
        "type": fault.wrong.kind(), "loc": loc, "msg": fault.wrong.to_string(), "input": fault.input
    });
    match fault.wrong {
        Wrong::Below(min) => item["ctx"] = json!({ "ge": min }),
        Wrong::Above(max) => item["ctx"] = json!({ "le": max }),
        _ => {}
    }
    item
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
