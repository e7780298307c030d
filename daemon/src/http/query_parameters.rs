//! Parses query parameters and other short texts. Each parameter must be known, occur at most once, and have a valid
//! value; otherwise the request is refused with the name of the parameter.

use std::str::FromStr;
use std::time::Duration;

use axum::extract::Query;
use http::Uri;
use proctor_core::api::{Problem, ProblemType};
use proctor_core::spec::quoted;

/// The query parameters of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct QueryParameters(Vec<(String, String)>);

impl QueryParameters {
    /// Parses the parameters of a URI; each name must be in `known`.
    ///
    /// # Errors
    /// A parameter is unknown or repeated, or the query cannot be parsed.
    pub(super) fn from_uri(uri: &Uri, known: impl Iterator<Item = &'static str> + Clone) -> Result<Self, Problem> {
        if uri.query().is_none() {
            return Ok(Self(Vec::new()));
        }
        let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|error| invalid_request(format!("the query cannot be read: {error}")))?;
        for (index, (name, _)) in pairs.iter().enumerate() {
            if known.clone().all(|known| known != name) {
                return Err(unknown_parameter(name, known));
            }
            if pairs[..index].iter().any(|(earlier, _)| earlier == name) {
                return Err(invalid_request(format!("the parameter {} occurs twice", quoted(name))));
            }
        }
        Ok(Self(pairs))
    }

    /// Returns the text of a parameter.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// Parses the value of a parameter.
    ///
    /// # Errors
    /// The value is invalid; `what` describes the expected value.
    pub(super) fn parse_value<T: FromStr>(&self, name: &str, what: &str) -> Result<Option<T>, Problem> {
        self.parse_with(name, what, |text| text.parse().ok())
    }

    /// Like [`QueryParameters::parse_value`], with a custom parser.
    ///
    /// # Errors
    /// As [`QueryParameters::parse_value`].
    pub(super) fn parse_with<T>(
        &self,
        name: &str,
        what: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Problem> {
        let Some(text) = self.text(name) else { return Ok(None) };
        parse(text).map(Some).ok_or_else(|| invalid_request(format!("`{name}` must be {what}, not {}", quoted(text))))
    }
}

fn unknown_parameter(name: &str, known: impl Iterator<Item = &'static str>) -> Problem {
    let known: Vec<String> = known.map(|name| format!("`{name}`")).collect();
    let problem = invalid_request(format!("unknown parameter {}", quoted(name)));
    if known.is_empty() { problem } else { problem.with_hint(format!("there are {}", known.join(", "))) }
}

/// Returns the problem for an invalid request.
pub(super) fn invalid_request(detail: String) -> Problem {
    Problem::new(ProblemType::InvalidRequest, detail)
}

/// Parses a number that consists of digits only.
pub(super) fn parse_number(text: &str) -> Option<u64> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| text.parse().ok()).flatten()
}

/// Parses a duration: `45s`, `500ms`, `1m`, or a number of seconds.
pub(super) fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let count = parse_number(digits).filter(|_| digits.len() <= 9)?;
    Some(match &text[digits.len()..] {
        "" | "s" => Duration::from_secs(count),
        "ms" => Duration::from_millis(count),
        "m" => Duration::from_secs(count * 60),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_query(query: &str) -> Result<QueryParameters, Problem> {
        QueryParameters::from_uri(&format!("/x?{query}").parse().expect("a URI"), ["wait", "after"].into_iter())
    }

    #[test]
    fn accepts_each_known_parameter_once() {
        let found = parse_query("wait=4%35s&after=7").expect("reads");
        assert_eq!(found.text("wait"), Some("45s"));
        assert_eq!(found.parse_value::<u64>("after", "a number"), Ok(Some(7)));
        for bad in ["wiat=1", "wait=1&wait=1", "=1", "wait=1&%00=2", "&after=1&after=1"] {
            assert_eq!(parse_query(bad).expect_err(bad).status, 400, "{bad}");
        }
        assert!(parse_query("after=x").expect("reads").parse_value::<u64>("after", "a number").is_err());
    }

    #[test]
    fn parses_durations() {
        assert_eq!(parse_duration("45s"), Some(Duration::from_secs(45)));
        assert_eq!(parse_duration("45"), Some(Duration::from_secs(45)));
        assert_eq!(parse_duration("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(parse_duration("1m"), Some(Duration::from_secs(60)));
        for bad in ["", "s", "-1s", "1h", "1 s", "+1", "1e3", "9999999999s", "4５s"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }
}
