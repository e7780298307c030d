//! Recognises failures in the output of a step that a limit of the sandbox probably caused, and returns hints. A hint
//! never affects an outcome.

use crate::model::outcome::{LimitKind, Outcome, Termination};
use crate::model::plan::{Limit, Network};
use crate::record::evidence::StepEvidence;
use crate::report::stream_texts::StreamTexts;
use crate::text::humanize::size;

/// Texts, in lower case, by which programs report that they reached no network: curl, the C library, Node.js, npm,
/// cargo, pip, uv and go.
const NETWORK_FAILURES: [&str; 23] = [
    "curl: (6)",
    "curl: (7)",
    "could not resolve host",
    "couldn't resolve host",
    "temporary failure in name resolution",
    "name or service not known",
    "failed to lookup address information",
    "getaddrinfo failed",
    "enotfound",
    "enetunreach",
    "eai_again",
    "enotcached",
    "network is unreachable",
    "failed to establish a new connection",
    "you're using offline mode (--offline)",
    "attempting to make an http request, but --offline was specified",
    "as offline mode is enabled",
    "because the network was disabled",
    "network connectivity is disabled",
    "dial tcp: lookup ",
    "dial tcp: connect: network is unreachable",
    "module lookup disabled by goproxy=off",
    "no route to host",
];
/// Texts, in lower case, by which programs report that memory ran out.
const MEMORY_FAILURES: [&str; 8] = [
    "memoryerror",
    "std::bad_alloc",
    "javascript heap out of memory",
    "out of memory",
    "outofmemoryerror",
    "cannot allocate memory",
    "virtual memory exhausted",
    "not enough memory",
];

/// Returns hints for a failed step, one line each.
pub fn failure_hints(step: &StepEvidence, outputs: &StreamTexts) -> Vec<String> {
    if !matches!(step.outcome, Outcome::Failed | Outcome::TimedOut) {
        return Vec::new();
    }
    let text = format!("{}\n{}", outputs.text(&step.stderr), outputs.text(&step.stdout)).to_lowercase();
    network_hint(step, &text).into_iter().chain(memory_hint(step, &text)).collect()
}

fn network_hint(step: &StepEvidence, text: &str) -> Option<String> {
    let is_denied = step.planned.network == Network::Deny;
    let hint = "the output reports a network failure, and this step has `network: deny`; fetch what it needs before the \
                run, or set `network: allow`";
    (is_denied && NETWORK_FAILURES.iter().any(|failure| text.contains(failure))).then(|| hint.to_owned())
}

fn memory_hint(step: &StepEvidence, text: &str) -> Option<String> {
    let Limit::Max(limit) = step.planned.limits.memory else { return None };
    // A kill by the kernel has a separate reason and hint.
    let is_known = matches!(step.termination, Termination::LimitHit { limit: LimitKind::Memory, .. });
    let ran_out = MEMORY_FAILURES.iter().any(|failure| text.contains(failure)) || reports_rust_allocation(text);
    let used = match step.resources.memory_peak_kib {
        Some(peak) => format!("all its processes used at most {}", size(peak.saturating_mul(1024))),
        None => format!("its largest process used {}", size(step.resources.max_rss_kib.saturating_mul(1024))),
    };
    (ran_out && !is_known)
        .then(|| format!("the output reports that memory ran out; `limits.memory` is {}, and {used}", size(limit)))
}

/// Matches `memory allocation of 1073741824 bytes failed` of Rust.
fn reports_rust_allocation(text: &str) -> bool {
    text.split("memory allocation of ").skip(1).any(|rest| {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        digits > 0 && rest[digits..].starts_with(" bytes failed")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture::{failed_step, passed_step, stream_evidence};

    fn hints(output: &str) -> Vec<String> {
        failure_hints(&with_limits(failed_step("a", output)), &StreamTexts::default())
    }

    fn with_limits(mut step: StepEvidence) -> StepEvidence {
        step.planned.network = Network::Deny;
        step.planned.limits.memory = Limit::Max(100 << 20);
        (step.resources.max_rss_kib, step.resources.memory_peak_kib) = (90 << 10, None);
        step
    }

    #[test]
    fn names_denied_network() {
        for output in [
            "curl: (6) Could not resolve host: example.org",
            "socket.gaierror: [Errno -3] Temporary failure in name resolution",
            "npm error code ENOTFOUND\nnpm error network request failed",
            "Error: connect ENETUNREACH 1.1.1.1:443",
            "fatal: unable to access 'https://x/': Could not resolve host: x",
            "error: failed to download\n  you're using offline mode (--offline); try without",
            "Failed to establish a new connection: [Errno -3]",
            "go: dial tcp: lookup proxy.golang.org: no such host",
        ] {
            let hints = hints(output);
            assert!(matches!(&hints[..], [hint] if hint.contains("`network: deny`")), "{output}: {hints:?}");
        }
    }

    #[test]
    fn names_memory_limit() {
        for output in [
            "Traceback (most recent call last):\nMemoryError",
            "terminate called after throwing an instance of 'std::bad_alloc'",
            "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory",
            "fatal error: runtime: out of memory",
            "memory allocation of 1073741824 bytes failed",
        ] {
            assert_eq!(
                hints(output),
                [
                    "the output reports that memory ran out; `limits.memory` is 100 MiB, and its largest process used 90 MiB"
                ]
            );
        }
    }

    #[test]
    fn other_failures_have_no_hint() {
        assert_eq!(hints("error: no\nmemory allocation of x bytes failed"), [""; 0]);
        let mut step = with_limits(failed_step("a", "curl: (6)\nMemoryError"));
        step.planned.network = Network::Allow;
        step.planned.limits.memory = Limit::Unlimited;
        assert_eq!(failure_hints(&step, &StreamTexts::default()), [""; 0]);
        let mut passed = with_limits(passed_step("a"));
        passed.stderr = stream_evidence("curl: (6)\nMemoryError");
        assert_eq!(failure_hints(&passed, &StreamTexts::default()), [""; 0]);
    }
}
