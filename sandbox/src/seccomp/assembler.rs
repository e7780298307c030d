//! Assembles classic BPF, as far as seccomp supports it (seccomp(2), linux/filter.h). It handles instructions and
//! distances, and does not depend on system calls.
//!
//! Jumps in classic BPF go forward, and conditional jumps by at most 255 instructions. So the program is built from
//! its end to its beginning: each method receives the labels of existing instructions to continue at, and returns the
//! label of the first instruction that it adds.

use libc::sock_filter;

/// The position of an instruction, counted from the end of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BpfLabel(usize);

/// The comparison of the accumulator with an instruction's constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BpfTest {
    /// The accumulator and the constant are equal.
    Equal,
    /// The accumulator is at least the constant.
    AtLeast,
    /// The accumulator and the constant have a bit in common.
    AnyBit,
}

/// A 32-bit word of the filter's input `struct seccomp_data`. Classic BPF reads the 64-bit fields in halves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SeccompWord {
    /// The number of the call.
    Number,
    /// The calling convention, as `AUDIT_ARCH_*`.
    Arch,
    /// The low half of an argument, counted from 0.
    Low(u32),
    /// The high half of an argument.
    High(u32),
}

/// `BPF_LD | BPF_W | BPF_ABS`: loads the word at offset `k` into the accumulator.
pub(super) const LOAD: u16 = 0x20;
/// `BPF_ALU | BPF_AND | BPF_K`.
pub(super) const AND: u16 = 0x54;
/// `BPF_JMP | BPF_JA`: skips `k` instructions.
pub(super) const JUMP: u16 = 0x05;
/// `BPF_JMP | BPF_JEQ | BPF_K`.
pub(super) const JUMP_EQUAL: u16 = 0x15;
/// `BPF_JMP | BPF_JGE | BPF_K`.
pub(super) const JUMP_AT_LEAST: u16 = 0x35;
/// `BPF_JMP | BPF_JSET | BPF_K`.
pub(super) const JUMP_ANY_BIT: u16 = 0x45;
/// `BPF_RET | BPF_K`.
pub(super) const RETURN: u16 = 0x06;

/// The largest number of instructions that a conditional jump can skip.
const MAX_JUMP: usize = u8::MAX as usize;

#[cfg(target_endian = "big")]
compile_error!("the halves of a seccomp argument are in the opposite order on a big-endian machine");

impl SeccompWord {
    /// Returns the offset in `struct seccomp_data`: number, arch, instruction pointer (8 bytes), six arguments.
    pub(super) const fn offset(self) -> u32 {
        match self {
            Self::Number => 0,
            Self::Arch => 4,
            Self::Low(argument) => 16 + 8 * argument,
            Self::High(argument) => 20 + 8 * argument,
        }
    }
}

/// A program that grows at its beginning.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    /// The instructions, last one first.
    reversed: Vec<sock_filter>,
}

impl Assembler {
    /// Ends the filter with an answer to the kernel (`SECCOMP_RET_*`).
    pub(super) fn return_value(&mut self, answer: u32) -> BpfLabel {
        self.push(RETURN, answer, 0, 0)
    }

    /// Continues at `yes` if the accumulator passes the test, and at `no` otherwise.
    pub(super) fn branch(&mut self, test: BpfTest, constant: u32, yes: BpfLabel, no: BpfLabel) -> BpfLabel {
        // The jump for `yes` may be inserted before `no`, which increases the distance to `no` by one.
        let no = self.label_within(no, MAX_JUMP - 1);
        let yes = self.label_within(yes, MAX_JUMP);
        let code = match test {
            BpfTest::Equal => JUMP_EQUAL,
            BpfTest::AtLeast => JUMP_AT_LEAST,
            BpfTest::AnyBit => JUMP_ANY_BIT,
        };
        let (if_true, if_false) = (self.short_distance(yes), self.short_distance(no));
        self.push(code, constant, if_true, if_false)
    }

    /// Loads a word into the accumulator.
    pub(super) fn load(&mut self, word: SeccompWord, next: BpfLabel) -> BpfLabel {
        self.continue_at(next);
        self.push(LOAD, word.offset(), 0, 0)
    }

    /// Keeps the bits of `mask` in the accumulator.
    pub(super) fn mask_bits(&mut self, mask: u32, next: BpfLabel) -> BpfLabel {
        self.continue_at(next);
        self.push(AND, mask, 0, 0)
    }

    /// Returns the program in execution order, beginning at `start`.
    pub(super) fn finish(mut self, start: BpfLabel) -> Vec<sock_filter> {
        self.continue_at(start);
        self.reversed.reverse();
        self.reversed
    }

    /// Returns a label that leads to the same instruction and is at most `most` instructions beyond the next one.
    fn label_within(&mut self, label: BpfLabel, max_distance: usize) -> BpfLabel {
        if self.distance(label) <= max_distance { label } else { self.jump(label) }
    }

    /// Ensures that the instruction to be added continues at `label`.
    fn continue_at(&mut self, label: BpfLabel) {
        if self.distance(label) > 0 {
            self.jump(label);
        }
    }

    fn jump(&mut self, to: BpfLabel) -> BpfLabel {
        // A program has a few hundred instructions, far below the limit of the field.
        let distance = u32::try_from(self.distance(to)).unwrap_or(u32::MAX);
        self.push(JUMP, distance, 0, 0)
    }

    /// Returns the number of instructions between the one to be added and the one at `label`.
    fn distance(&self, label: BpfLabel) -> usize {
        self.reversed.len() - 1 - label.0
    }

    fn short_distance(&self, label: BpfLabel) -> u8 {
        // `within` ensures that it fits.
        u8::try_from(self.distance(label)).unwrap_or(u8::MAX)
    }

    fn push(&mut self, code: u16, k: u32, jt: u8, jf: u8) -> BpfLabel {
        self.reversed.push(sock_filter { code, jt, jf, k });
        BpfLabel(self.reversed.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp::bpf_simulator::{SimulatedCall, run_program};

    /// Builds a program that answers 7 to call 1 and 9 to all others, with `between` instructions between the branch
    /// and either answer.
    fn branch_over(between: usize) -> Vec<sock_filter> {
        let mut asm = Assembler::default();
        let (yes, no) = (asm.return_value(7), asm.return_value(9));
        for _ in 0..between {
            asm.return_value(0);
        }
        let branch = asm.branch(BpfTest::Equal, 1, yes, no);
        let load = asm.load(SeccompWord::Number, branch);
        asm.finish(load)
    }

    #[test]
    fn branches_reach_any_distance() {
        for between in [0, 1, 252, 253, 254, 255, 256, 257, 600] {
            let program = branch_over(between);
            assert_eq!(run_program(&program, &SimulatedCall::new(1)), 7, "{between} between");
            assert_eq!(run_program(&program, &SimulatedCall::new(2)), 9, "{between} between");
        }
    }

    #[test]
    fn near_branch_needs_no_jump() {
        assert_eq!(branch_over(0).len(), 4);
        assert!(branch_over(300).iter().filter(|instruction| instruction.code == JUMP).count() == 2);
    }

    #[test]
    fn evaluates_tests_on_words() {
        let mut asm = Assembler::default();
        let (yes, no) = (asm.return_value(1), asm.return_value(0));
        let bit = asm.branch(BpfTest::AnyBit, 0x30, yes, no);
        let high = asm.load(SeccompWord::High(5), bit);
        let equal = asm.branch(BpfTest::Equal, 0x50, high, no);
        let masked = asm.mask_bits(0xf0, equal);
        let low = asm.load(SeccompWord::Low(5), masked);
        let at_least = asm.branch(BpfTest::AtLeast, 3, low, no);
        let start = asm.load(SeccompWord::Number, at_least);
        let program = asm.finish(start);
        let call = |number, argument| run_program(&program, &SimulatedCall::new(number).with_argument(5, argument));
        assert_eq!(call(3, 0x10_0000_0a5f), 1);
        assert_eq!(call(4, 0x20_0000_0050), 1);
        assert_eq!(call(2, 0x20_0000_0050), 0);
        assert_eq!(call(3, 0x40_0000_0050), 0);
        assert_eq!(call(3, 0x10_0000_0060), 0);
    }
}
