//! Formats quantities, signals and limits for people. Every screen and report uses these functions.

/// Formats a duration: `12 ms`, `4.2 s`, `12 s`, `1m30s`, `2h05m`.
pub fn duration(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..10_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        10_000..60_000 => format!("{} s", ms / 1000),
        60_000..3_600_000 => format!("{}m{:02}s", ms / 60_000, ms / 1000 % 60),
        _ => format!("{}h{:02}m", ms / 3_600_000, ms / 60_000 % 60),
    }
}

/// Formats a limit in milliseconds; uses seconds or minutes if they are exact.
pub fn exact_duration(ms: u64) -> String {
    match ms {
        _ if ms > 0 && ms.is_multiple_of(60_000) => format!("{} min", ms / 60_000),
        _ if ms.is_multiple_of(1_000) => format!("{} s", ms / 1_000),
        _ => format!("{ms} ms"),
    }
}

/// Formats a size; uses a larger unit exactly if possible, otherwise rounded down to one decimal.
pub fn size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 3] = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let whole = UNITS.iter().find(|(_, shift)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    let rough = UNITS.iter().find(|(_, shift)| bytes >= 1 << shift);
    match (whole, rough) {
        (Some((unit, shift)), _) => format!("{} {unit}", bytes >> shift),
        (None, Some((unit, shift))) => format!("{}.{} {unit}", bytes >> shift, ((bytes % (1 << shift)) * 10) >> shift),
        (None, None) => format!("{bytes} B"),
    }
}

/// Formats a used size in the largest unit that fits, rounded down to one decimal. Sizes on a disk are multiples of its
/// blocks, so that [`size`] would often use a small unit.
pub fn used_size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 3] = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match UNITS.iter().find(|(_, shift)| bytes >= 1 << shift) {
        Some((unit, shift)) if bytes.is_multiple_of(1 << shift) => format!("{} {unit}", bytes >> shift),
        Some((unit, shift)) => format!("{}.{} {unit}", bytes >> shift, ((bytes % (1 << shift)) * 10) >> shift),
        None => format!("{bytes} B"),
    }
}

/// Formats a number with its noun: `1 step`, `2 steps`.
pub fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// Formats a signal with its Linux name, such as `9 (SIGKILL)`; see signal(7).
pub fn signal_name(signal: u8) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM",
        "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF",
        "WINCH", "IO", "PWR", "SYS",
    ];
    match NAMES.get(usize::from(signal).wrapping_sub(1)) {
        Some(name) => format!("{signal} (SIG{name})"),
        None => signal.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_quantities() {
        let durations = [0, 449, 9_999, 10_000, 59_999, 90_000, 3_600_000 + 5 * 60_000].map(duration);
        assert_eq!(durations, ["0 ms", "449 ms", "9.9 s", "10 s", "59 s", "1m30s", "1h05m"]);
        assert_eq!([600_000, 1_000, 1_500, 0].map(exact_duration), ["10 min", "1 s", "1500 ms", "0 s"]);
        assert_eq!(
            [0, 512, 4096, 5000, 8 << 30, (1 << 20) + 1].map(size),
            ["0 B", "512 B", "4 KiB", "4.8 KiB", "8 GiB", "1.0 MiB"]
        );
        assert_eq!(
            [0, 512, 4096, 3_145_732 << 10, (5 << 20) + 4096, 1 << 30].map(used_size),
            ["0 B", "512 B", "4 KiB", "3.0 GiB", "5.0 MiB", "1 GiB"]
        );
        assert_eq!([0, 9, 31, 64].map(signal_name), ["0", "9 (SIGKILL)", "31 (SIGSYS)", "64"]);
        assert_eq!(count(1, "step") + &count(0, "step"), "1 step0 steps");
    }
}
