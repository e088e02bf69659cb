//! Who may do what: bearer tokens for calls that change state or tell where things are.

use axum::http::{HeaderMap, header};

use super::error::Problem;
use super::state::HttpParams;

/// What a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing.
    Open,
    /// `ingest_token`, where one is set.
    Samples,
    /// `admin_token`, where one is set.
    Admin,
}

/// Refuses a call without the token, where one is set.
///
/// # Errors
/// [`Problem::Unauthorized`] with the name of the setting.
pub fn authorize(headers: &HeaderMap, access: Access, params: &HttpParams) -> Result<(), Problem> {
    let (token, setting) = match access {
        Access::Open => return Ok(()),
        Access::Samples => (params.ingest_token.as_deref(), "ingest_token"),
        Access::Admin => (params.admin_token.as_deref(), "admin_token"),
    };
    match token {
        Some(token) if !carries(headers, token) => Err(Problem::Unauthorized(setting)),
        _ => Ok(()),
    }
}

/// Whether the caller is a known administrator: an admin token is set, and this call carries it.
pub fn is_admin(headers: &HeaderMap, params: &HttpParams) -> bool {
    params.admin_token.as_deref().is_some_and(|token| carries(headers, token))
}

fn carries(headers: &HeaderMap, token: &str) -> bool {
    let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (scheme, given) = value.split_once(' ').unwrap_or_default();
    let given = given.trim();
    // Every byte is looked at whatever the first difference, so that time tells nothing about the token.
    let differs = given.bytes().zip(token.bytes()).fold(0u8, |sum, (a, b)| sum | (a ^ b));
    scheme.eq_ignore_ascii_case("bearer") && given.len() == token.len() && differs == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn only_the_whole_token_opens() {
        let params = HttpParams { admin_token: Some("secret".into()), ..HttpParams::default() };
        let allowed = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_static(value));
            authorize(&headers, Access::Admin, &params).is_ok()
        };
        assert!(allowed("Bearer secret") && allowed("bearer  secret"));
        for wrong in ["Bearer secre", "Bearer secrets", "Bearer ", "Basic secret", "secret", ""] {
            assert!(!allowed(wrong), "{wrong}");
        }
        assert!(authorize(&HeaderMap::new(), Access::Samples, &params).is_ok());
        assert!(!is_admin(&HeaderMap::new(), &HttpParams::default()));
    }
}
