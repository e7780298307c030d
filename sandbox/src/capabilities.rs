//! Reads the capabilities of this process.

use rustix::thread::{CapabilitySet, CapabilitySets};

/// Returns whether this thread has no capability, and cannot get one by executing a program either. Returns `false` if
/// that cannot be read.
pub(crate) fn has_none() -> bool {
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::capabilities(None).is_ok_and(|sets| sets == none) && is_bounding_set_empty()
}

/// Returns whether the bounding set is empty. Returns `false` if it cannot be read.
pub(crate) fn is_bounding_set_empty() -> bool {
    for bit in 0..u64::BITS {
        match rustix::thread::capability_is_in_bounding_set(CapabilitySet::from_bits_retain(1 << bit)) {
            Ok(false) => {}
            // The kernel does not know this capability, nor any after it.
            Err(rustix::io::Errno::INVAL) => return bit > 0,
            Ok(true) | Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_kernel() {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("read");
        let is_zero = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
            line.trim().bytes().all(|digit| digit == b'0')
        };
        assert_eq!(is_bounding_set_empty(), is_zero("CapBnd:"));
        let own = ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:"].into_iter().all(is_zero);
        assert_eq!(has_none(), own);
    }
}
