//! Flips single bits of the gate's inputs; each must cause a finding.

use proptest::prelude::*;

use super::{GateScenario, WrittenDocuments};
use crate::decision::gate::gate_facts::UnattestedPolicy;
use crate::text::digest::{Sha256Hex, SnapshotId};

/// Flips one bit.
fn flip_bit(bytes: &mut [u8], bit: usize) {
    let bit = bit % (bytes.len() * 8);
    bytes[bit / 8] ^= 1 << (bit % 8);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn rejects_flipped_bit_in_evidence(which in 0usize..3, bit in any::<usize>(), attested in any::<bool>()) {
        let mut scenario = GateScenario::new();
        scenario.requirements.unattested = UnattestedPolicy::Accept;
        let mut laid = scenario.write_documents();
        if !attested {
            laid.attestation = None;
        }
        prop_assert!(laid.evaluate().pass);
        let bytes = laid.files.values_mut().nth(which).expect("three files");
        flip_bit(bytes, bit);
        prop_assert!(!laid.evaluate().pass);
    }

    #[test]
    fn rejects_flipped_bit_in_status_or_attestation(bit in any::<usize>(), status in any::<bool>()) {
        let scenario = GateScenario::new();
        let mut laid = scenario.write_documents();
        if status { flip_bit(&mut laid.status, bit) } else { flip_bit(laid.attestation.as_mut().expect("one"), bit) }
        let answer = laid.evaluate();
        prop_assert!(!answer.pass, "{:?}", answer);
    }

    #[test]
    fn rejects_flipped_bit_in_current_tree_or_spec(bit in 0usize..256, tree in any::<bool>()) {
        let mut scenario = GateScenario::new();
        let turned = |sha256: &Sha256Hex| {
            let mut raw = sha256.to_raw();
            flip_bit(&mut raw, bit);
            Sha256Hex::from_raw(raw)
        };
        if tree {
            scenario.snapshot = SnapshotId::from_root(&turned(&Sha256Hex::digest(b"t")));
        } else {
            scenario.plan.spec_sha256 = turned(&scenario.plan.spec_sha256);
        }
        let honest = GateScenario::new();
        let laid = WrittenDocuments { scenario: &scenario, ..honest.write_documents() };
        prop_assert!(!laid.evaluate().pass);
    }
}
