//! Flips single bits of the gate's inputs; each must cause a finding.

use proptest::prelude::*;

use super::{Laid, World};
use crate::digest::{Sha256Hex, SnapshotId};
use crate::gate::Unattested;

/// Flips one bit.
fn flip(bytes: &mut [u8], bit: usize) {
    let bit = bit % (bytes.len() * 8);
    bytes[bit / 8] ^= 1 << (bit % 8);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn no_single_bit_of_the_evidence_may_change(which in 0usize..3, bit in any::<usize>(), attested in any::<bool>()) {
        let mut world = World::new();
        world.demands.unattested = Unattested::Accept;
        let mut laid = world.laid_out();
        if !attested {
            laid.attestation = None;
        }
        prop_assert!(laid.answer().pass);
        let bytes = laid.files.values_mut().nth(which).expect("three files");
        flip(bytes, bit);
        prop_assert!(!laid.answer().pass);
    }

    #[test]
    fn no_single_bit_of_status_or_record_may_change(bit in any::<usize>(), status in any::<bool>()) {
        let world = World::new();
        let mut laid = world.laid_out();
        if status { flip(&mut laid.status, bit) } else { flip(laid.attestation.as_mut().expect("one"), bit) }
        let answer = laid.answer();
        prop_assert!(!answer.pass, "{:?}", answer);
    }

    #[test]
    fn no_single_bit_of_what_stands_today_may_change(bit in 0usize..256, tree in any::<bool>()) {
        let mut world = World::new();
        let turned = |sha256: &Sha256Hex| {
            let mut raw = sha256.to_raw();
            flip(&mut raw, bit);
            Sha256Hex::from_raw(raw)
        };
        if tree {
            world.snapshot = SnapshotId::from_root(&turned(&Sha256Hex::of(b"t")));
        } else {
            world.plan.spec_sha256 = turned(&world.plan.spec_sha256);
        }
        let honest = World::new();
        let laid = Laid { world: &world, ..honest.laid_out() };
        prop_assert!(!laid.answer().pass);
    }
}
