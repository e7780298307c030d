//! Represents the decision about a call as data, and translates decisions into a program. The module `syscall_table`
//! assigns a decision to each call.

use std::collections::BTreeMap;

use libc::sock_filter;
use nix::errno::Errno;

use super::assembler::{Assembler, BpfLabel, BpfTest, SeccompWord};

/// The decision about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SyscallDecision {
    /// The kernel executes the call.
    Allow,
    /// The call fails with this error and has no effect.
    Refuse(Errno),
    /// Depends on whether an argument has any of some bits.
    AnyBit {
        /// The word to examine.
        word: SeccompWord,
        /// The bits to look for.
        mask: u32,
        /// The decision if any bit is set.
        then: &'static SyscallDecision,
        /// The decision if no bit is set.
        otherwise: &'static SyscallDecision,
    },
    /// Depends on the value of an argument.
    OneOf {
        /// The word to examine.
        word: SeccompWord,
        /// The bits to compare.
        mask: u32,
        /// The values to look for.
        values: &'static [u32],
        /// The decision if the word has one of these values.
        then: &'static SyscallDecision,
        /// The decision if the word has any other value.
        otherwise: &'static SyscallDecision,
    },
}

/// A mask with every bit of a word.
pub(super) const ALL_BITS: u32 = u32::MAX;

/// A decision with the first number to which it applies. It applies up to the number of the next step.
pub(super) type DecisionRange = (u32, SyscallDecision);

/// Compiles the program for calls of `arch` by the decisions of `steps`, which start at 0 and are sorted. A call with a
/// different calling convention gets `foreign`.
pub(super) fn compile(arch: u32, foreign: SyscallDecision, steps: &[DecisionRange]) -> Vec<sock_filter> {
    let mut program = FilterBuilder::default();
    let labels: Vec<_> = steps.iter().map(|(from, decision)| (*from, program.label_for(decision))).collect();
    let foreign = program.label_for(&foreign);
    let mut asm = program.asm;
    let search = search(&mut asm, &labels);
    let number = asm.load(SeccompWord::Number, search);
    let convention = asm.branch(BpfTest::Equal, arch, number, foreign);
    let start = asm.load(SeccompWord::Arch, convention);
    asm.finish(start)
}

/// Builds a balanced search for the last step whose number is at most the number in the accumulator. `steps` is not
/// empty.
fn search(asm: &mut Assembler, steps: &[(u32, BpfLabel)]) -> BpfLabel {
    let (lower, upper) = steps.split_at(steps.len() / 2);
    match (lower, upper) {
        ([], _) => upper[0].1,
        _ => {
            let above = search(asm, upper);
            let below = search(asm, lower);
            asm.branch(BpfTest::AtLeast, upper[0].0, above, below)
        }
    }
}

/// A program under construction, which contains each answer once.
#[derive(Default)]
struct FilterBuilder {
    asm: Assembler,
    answers: BTreeMap<u32, BpfLabel>,
    checks: Vec<(SyscallDecision, BpfLabel)>,
}

impl FilterBuilder {
    /// Returns the label of the code for a decision. Calls with the same decision share the code.
    fn label_for(&mut self, decision: &SyscallDecision) -> BpfLabel {
        match *decision {
            SyscallDecision::Allow => self.label_for_answer(libc::SECCOMP_RET_ALLOW),
            SyscallDecision::Refuse(errno) => self.label_for_answer(errno_answer(errno)),
            SyscallDecision::AnyBit { .. } | SyscallDecision::OneOf { .. } => {
                if let Some((_, label)) = self.checks.iter().find(|(known, _)| known == decision) {
                    return *label;
                }
                let label = self.label_for_check(decision);
                self.checks.push((*decision, label));
                label
            }
        }
    }

    fn label_for_answer(&mut self, answer: u32) -> BpfLabel {
        *self.answers.entry(answer).or_insert_with(|| self.asm.return_value(answer))
    }

    fn label_for_check(&mut self, decision: &SyscallDecision) -> BpfLabel {
        match *decision {
            SyscallDecision::AnyBit { word: of, mask, then, otherwise } => {
                let (then, otherwise) = (self.label_for(then), self.label_for(otherwise));
                let test = self.asm.branch(BpfTest::AnyBit, mask, then, otherwise);
                self.asm.load(of, test)
            }
            SyscallDecision::OneOf { word: of, mask, values, then, otherwise } => {
                let (then, otherwise) = (self.label_for(then), self.label_for(otherwise));
                let compare = |next, value: &u32| self.asm.branch(BpfTest::Equal, *value, then, next);
                let first = values.iter().fold(otherwise, compare);
                let masked = if mask == ALL_BITS { first } else { self.asm.mask_bits(mask, first) };
                self.asm.load(of, masked)
            }
            SyscallDecision::Allow | SyscallDecision::Refuse(_) => self.label_for(decision),
        }
    }
}

/// Returns the filter's return value for an error.
pub(super) fn errno_answer(errno: Errno) -> u32 {
    libc::SECCOMP_RET_ERRNO | (errno as i32).cast_unsigned()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::seccomp::bpf_simulator::{SimulatedCall, check_program, run_program};

    impl SyscallDecision {
        /// Returns the expected answer to this call, computed without a program.
        pub(in crate::seccomp) fn expected_answer(&self, call: &SimulatedCall) -> u32 {
            let word = |of| match of {
                SeccompWord::Number => call.number,
                SeccompWord::Arch => call.arch,
                SeccompWord::Low(argument) => u32::try_from(call.arguments[argument as usize] & 0xffff_ffff).unwrap(),
                SeccompWord::High(argument) => u32::try_from(call.arguments[argument as usize] >> 32).unwrap(),
            };
            match *self {
                Self::Allow => libc::SECCOMP_RET_ALLOW,
                Self::Refuse(errno) => errno_answer(errno),
                Self::AnyBit { word: of, mask, then, otherwise } => {
                    if word(of) & mask != 0 {
                        then.expected_answer(call)
                    } else {
                        otherwise.expected_answer(call)
                    }
                }
                Self::OneOf { word: of, mask, values, then, otherwise } => {
                    if values.contains(&(word(of) & mask)) {
                        then.expected_answer(call)
                    } else {
                        otherwise.expected_answer(call)
                    }
                }
            }
        }

        /// Returns the argument values at which the decision changes, and a value next to each.
        pub(in crate::seccomp) fn boundary_values(&self) -> Vec<(SeccompWord, u32)> {
            let (own, branches): (Vec<_>, _) = match *self {
                Self::Allow | Self::Refuse(_) => return Vec::new(),
                Self::AnyBit { word: of, mask, then, otherwise } => {
                    ((0..32).map(|bit| (of, mask & (1 << bit))).chain([(of, !mask)]).collect(), [then, otherwise])
                }
                Self::OneOf { word: of, mask, values, then, otherwise } => {
                    let near = |value: &u32| [*value, value.wrapping_add(1), value.wrapping_sub(1), value | !mask];
                    (values.iter().flat_map(near).map(|value| (of, value)).collect(), [then, otherwise])
                }
            };
            own.into_iter().chain(branches.into_iter().flat_map(Self::boundary_values)).collect()
        }
    }

    const NESTED_DECISION: SyscallDecision = SyscallDecision::AnyBit {
        word: SeccompWord::Low(0),
        mask: 1,
        then: &SyscallDecision::Refuse(Errno::EPERM),
        otherwise: &SyscallDecision::OneOf {
            word: SeccompWord::High(0),
            mask: 0xff,
            values: &[4, 2],
            then: &SyscallDecision::Allow,
            otherwise: &SyscallDecision::Refuse(Errno::EINVAL),
        },
    };

    #[test]
    fn program_matches_decisions() {
        let steps: Vec<DecisionRange> = (0..700_u32)
            .map(|step| {
                let decision = match step % 3 {
                    0 => SyscallDecision::Allow,
                    1 => SyscallDecision::Refuse(Errno::ENOSYS),
                    _ => NESTED_DECISION,
                };
                (step * 2, decision)
            })
            .collect();
        let program = compile(7, SyscallDecision::Refuse(Errno::EXDEV), &steps);
        check_program(&program);
        let arguments = [0, 1, 0x2_0000_0000, 0x104_0000_0002, 0x2_0000_0001, 0x3_0000_0000];
        for number in (0..1410).chain([0x4000_0000, u32::MAX]) {
            let (_, decision) = steps.iter().rev().find(|(from, _)| *from <= number).unwrap();
            for argument in arguments {
                let call = SimulatedCall { arch: 7, ..SimulatedCall::new(number) }.with_argument(0, argument);
                assert_eq!(run_program(&program, &call), decision.expected_answer(&call), "{call:?}");
                let foreign = SimulatedCall { arch: 8, ..call };
                assert_eq!(run_program(&program, &foreign), errno_answer(Errno::EXDEV));
            }
        }
    }

    #[test]
    fn shares_code_of_equal_decisions() {
        let steps = |count: u32| (0..count).map(|step| (step, NESTED_DECISION)).collect::<Vec<_>>();
        let length = |count| compile(7, SyscallDecision::Allow, &steps(count)).len();
        // An additional step costs a comparison and sometimes a jump, but not another copy of the check.
        assert!(length(64) < length(1) + 2 * 63);
    }
}
