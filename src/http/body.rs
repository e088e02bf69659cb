//! A request's body: size limit, content type, gzip and zstd, all checked before a byte is parsed.

use std::io::Read;

use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::error::Problem;
use super::state::AppState;

/// The bytes of a JSON body, decompressed, within the limit.
pub struct JsonBody(pub Vec<u8>);

impl FromRequest<AppState> for JsonBody {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, Problem> {
        let limit = state.params.body_bytes_max;
        let (head, body) = request.into_parts();
        let declared = head.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        if declared.is_some_and(|length: usize| length > limit) {
            return Err(Problem::TooLarge { limit });
        }
        let bytes = Limited::new(body, limit).collect().await.map_err(|error| {
            if error.downcast_ref::<LengthLimitError>().is_some() {
                Problem::TooLarge { limit }
            } else {
                Problem::UnreadableBody("the body ended early".to_string())
            }
        })?;
        let bytes = decompress(&head.headers, bytes.to_bytes().to_vec(), limit)?;
        if !bytes.is_empty() && !is_json(&head.headers) {
            return Err(Problem::NotAnObject("send content-type: application/json"));
        }
        if std::str::from_utf8(&bytes).is_err() {
            return Err(Problem::UnreadableBody(
                "it is not UTF-8; name the content-encoding if it is compressed".to_string(),
            ));
        }
        Ok(JsonBody(bytes))
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()) else { return false };
    let essence = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
}

fn decompress(headers: &HeaderMap, bytes: Vec<u8>, limit: usize) -> Result<Vec<u8>, Problem> {
    let encoding = headers
        .get(header::CONTENT_ENCODING)
        .and_then(|value| value.to_str().ok())
        .map(|value| value.trim().to_ascii_lowercase());
    let broken = |error: &dyn std::fmt::Display| Problem::UnreadableBody(format!("cannot decompress it ({error})"));
    match encoding.as_deref() {
        None | Some("" | "identity") => Ok(bytes),
        Some("gzip" | "x-gzip") => read_all(flate2::read::GzDecoder::new(bytes.as_slice()), limit),
        Some("zstd") => {
            let decoder = ruzstd::decoding::StreamingDecoder::new(bytes.as_slice()).map_err(|error| broken(&error))?;
            read_all(decoder, limit)
        }
        Some(other) => Err(Problem::UnsupportedEncoding(other.chars().take(40).collect())),
    }
}

/// Reads at most `limit` bytes: a small body can decompress to anything.
fn read_all(reader: impl Read, limit: usize) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::new();
    reader
        .take(limit as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Problem::UnreadableBody(format!("cannot decompress it ({error})")))?;
    if bytes.len() > limit { Err(Problem::TooLarge { limit }) } else { Ok(bytes) }
}
