//! Text formats of metrics, and their selection by the `Accept` header.

/// Content type of OpenMetrics 1.0.
const OPEN_METRICS: &str = "application/openmetrics-text";

/// A text format that Prometheus supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextFormat {
    /// Prometheus text format 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl TextFormat {
    /// Selects the format from the `Accept` headers: OpenMetrics only if a header names it.
    pub fn from_accept_headers<'a>(headers: impl Iterator<Item = &'a str>) -> Self {
        let mut ranges = headers.flat_map(|header| header.split(','));
        if ranges.any(names_open_metrics) { Self::OpenMetrics } else { Self::Prometheus }
    }

    /// Returns the content type.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Converts text in OpenMetrics to this format.
    pub(super) fn convert(self, open_metrics: String) -> String {
        match self {
            Self::Prometheus => to_prometheus(&open_metrics),
            Self::OpenMetrics => open_metrics,
        }
    }
}

fn names_open_metrics(range: &str) -> bool {
    let mut parts = range.split(';').map(str::trim);
    let is_named = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case(OPEN_METRICS));
    let weight = parts.find_map(|part| part.strip_prefix("q=")).and_then(|weight| weight.parse::<f32>().ok());
    is_named && weight.is_none_or(|weight| weight > 0.0)
}

/// Converts OpenMetrics to format 0.0.4, which describes a counter under the name of its samples and has neither
/// units nor an end marker.
fn to_prometheus(open_metrics: &str) -> String {
    let counters: Vec<&str> =
        open_metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    let mut text = String::with_capacity(open_metrics.len() + 64 * counters.len());
    for line in open_metrics.lines().filter(|line| *line != "# EOF" && !line.starts_with("# UNIT ")) {
        let described = ["# HELP ", "# TYPE "].iter().find_map(|kind| Some((*kind, line.strip_prefix(kind)?)));
        match described.and_then(|(kind, rest)| Some((kind, rest.split_once(' ')?))) {
            Some((kind, (name, rest))) if counters.contains(&name) => {
                text.extend([kind, name, "_total ", rest]);
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_open_metrics_only_if_accepted() {
        let format_for = |header: &str| TextFormat::from_accept_headers([header].into_iter());
        for header in ["", "*/*", "text/plain", "application/openmetrics-text;q=0", "application/json"] {
            assert_eq!(format_for(header), TextFormat::Prometheus, "{header}");
        }
        for header in [
            "application/openmetrics-text",
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4,*/*;q=0.1",
            "text/plain;q=0.3, Application/OpenMetrics-Text; version=0.0.1",
        ] {
            assert_eq!(format_for(header), TextFormat::OpenMetrics, "{header}");
        }
        assert_eq!(TextFormat::from_accept_headers(std::iter::empty()), TextFormat::Prometheus);
    }

    #[test]
    fn counters_are_described_under_their_sample_names() {
        let text = "# HELP a Help of a.\n# TYPE a counter\na_total 1\n# HELP b_seconds B.\n# TYPE b_seconds gauge\n\
                    # UNIT b_seconds seconds\nb_seconds 2\n# EOF\n";
        let expected = "# HELP a_total Help of a.\n# TYPE a_total counter\na_total 1\n# HELP b_seconds B.\n\
                        # TYPE b_seconds gauge\nb_seconds 2\n";
        assert_eq!(to_prometheus(text), expected);
    }
}
