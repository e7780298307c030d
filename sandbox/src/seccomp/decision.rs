//! Represents the decision about a call as data, and translates decisions into a program. The module `calls` assigns
//! a decision to each call.

use std::collections::BTreeMap;

use libc::sock_filter;
use nix::errno::Errno;

use super::assembler::{Assembler, Label, Test, Word};

/// The decision about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// The kernel executes the call.
    Allow,
    /// The call fails with this error and has no effect.
    Refuse(Errno),
    /// Depends on whether an argument has any of some bits.
    AnyBit {
        /// The word to examine.
        of: Word,
        /// The bits to look for.
        mask: u32,
        /// The decision if any bit is set.
        then: &'static Decision,
        /// The decision if no bit is set.
        otherwise: &'static Decision,
    },
    /// Depends on the value of an argument.
    OneOf {
        /// The word to examine.
        of: Word,
        /// The bits to compare.
        mask: u32,
        /// The values to look for.
        values: &'static [u32],
        /// The decision if the word has one of these values.
        then: &'static Decision,
        /// The decision if it has another value.
        otherwise: &'static Decision,
    },
}

/// A mask with every bit of a word.
pub(super) const ALL: u32 = u32::MAX;

/// A decision with the first number to which it applies. It applies up to the number of the next step.
pub(super) type From = (u32, Decision);

/// Compiles the program for calls of `arch` by the decisions of `steps`, which start at 0 and are sorted. A call with
/// another calling convention gets `foreign`.
pub(super) fn compile(arch: u32, foreign: Decision, steps: &[From]) -> Vec<sock_filter> {
    let mut program = Program::default();
    let labels: Vec<_> = steps.iter().map(|(from, decision)| (*from, program.decision(decision))).collect();
    let foreign = program.decision(&foreign);
    let mut asm = program.asm;
    let search = search(&mut asm, &labels);
    let number = asm.load(Word::Number, search);
    let convention = asm.branch(Test::Equal, arch, number, foreign);
    let start = asm.load(Word::Arch, convention);
    asm.finish(start)
}

/// Builds a balanced search for the last step whose number is at most the number in the accumulator. `steps` is not
/// empty.
fn search(asm: &mut Assembler, steps: &[(u32, Label)]) -> Label {
    let (lower, upper) = steps.split_at(steps.len() / 2);
    match (lower, upper) {
        ([], _) => upper[0].1,
        _ => {
            let above = search(asm, upper);
            let below = search(asm, lower);
            asm.branch(Test::AtLeast, upper[0].0, above, below)
        }
    }
}

/// A program under construction, which contains each answer once.
#[derive(Default)]
struct Program {
    asm: Assembler,
    answers: BTreeMap<u32, Label>,
    checks: Vec<(Decision, Label)>,
}

impl Program {
    /// Returns the label of the code for a decision. Calls with the same decision share the code.
    fn decision(&mut self, decision: &Decision) -> Label {
        match *decision {
            Decision::Allow => self.answer(libc::SECCOMP_RET_ALLOW),
            Decision::Refuse(errno) => self.answer(refusal(errno)),
            Decision::AnyBit { .. } | Decision::OneOf { .. } => {
                if let Some((_, label)) = self.checks.iter().find(|(known, _)| known == decision) {
                    return *label;
                }
                let label = self.check(decision);
                self.checks.push((*decision, label));
                label
            }
        }
    }

    fn answer(&mut self, answer: u32) -> Label {
        *self.answers.entry(answer).or_insert_with(|| self.asm.ret(answer))
    }

    fn check(&mut self, decision: &Decision) -> Label {
        match *decision {
            Decision::AnyBit { of, mask, then, otherwise } => {
                let (then, otherwise) = (self.decision(then), self.decision(otherwise));
                let test = self.asm.branch(Test::AnyBit, mask, then, otherwise);
                self.asm.load(of, test)
            }
            Decision::OneOf { of, mask, values, then, otherwise } => {
                let (then, otherwise) = (self.decision(then), self.decision(otherwise));
                let compare = |next, value: &u32| self.asm.branch(Test::Equal, *value, then, next);
                let first = values.iter().fold(otherwise, compare);
                let masked = if mask == ALL { first } else { self.asm.and(mask, first) };
                self.asm.load(of, masked)
            }
            Decision::Allow | Decision::Refuse(_) => self.decision(decision),
        }
    }
}

/// Returns the filter's return value for an error.
pub(super) fn refusal(errno: Errno) -> u32 {
    libc::SECCOMP_RET_ERRNO | (errno as i32).cast_unsigned()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::seccomp::machine::{Call, check, run};

    impl Decision {
        /// Returns the expected answer to this call, computed without a program.
        pub(in crate::seccomp) fn answer(&self, call: &Call) -> u32 {
            let word = |of| match of {
                Word::Number => call.number,
                Word::Arch => call.arch,
                Word::Low(argument) => u32::try_from(call.arguments[argument as usize] & 0xffff_ffff).unwrap(),
                Word::High(argument) => u32::try_from(call.arguments[argument as usize] >> 32).unwrap(),
            };
            match *self {
                Self::Allow => libc::SECCOMP_RET_ALLOW,
                Self::Refuse(errno) => refusal(errno),
                Self::AnyBit { of, mask, then, otherwise } => {
                    if word(of) & mask != 0 {
                        then.answer(call)
                    } else {
                        otherwise.answer(call)
                    }
                }
                Self::OneOf { of, mask, values, then, otherwise } => {
                    if values.contains(&(word(of) & mask)) {
                        then.answer(call)
                    } else {
                        otherwise.answer(call)
                    }
                }
            }
        }

        /// Returns the argument values at which the decision changes, and a value next to each.
        pub(in crate::seccomp) fn turns(&self) -> Vec<(Word, u32)> {
            let (own, branches): (Vec<_>, _) = match *self {
                Self::Allow | Self::Refuse(_) => return Vec::new(),
                Self::AnyBit { of, mask, then, otherwise } => {
                    ((0..32).map(|bit| (of, mask & (1 << bit))).chain([(of, !mask)]).collect(), [then, otherwise])
                }
                Self::OneOf { of, mask, values, then, otherwise } => {
                    let near = |value: &u32| [*value, value.wrapping_add(1), value.wrapping_sub(1), value | !mask];
                    (values.iter().flat_map(near).map(|value| (of, value)).collect(), [then, otherwise])
                }
            };
            own.into_iter().chain(branches.into_iter().flat_map(Self::turns)).collect()
        }
    }

    const EVEN: Decision = Decision::AnyBit {
        of: Word::Low(0),
        mask: 1,
        then: &Decision::Refuse(Errno::EPERM),
        otherwise: &Decision::OneOf {
            of: Word::High(0),
            mask: 0xff,
            values: &[4, 2],
            then: &Decision::Allow,
            otherwise: &Decision::Refuse(Errno::EINVAL),
        },
    };

    #[test]
    fn a_program_answers_as_its_decisions() {
        let steps: Vec<From> = (0..700_u32)
            .map(|step| {
                let decision = match step % 3 {
                    0 => Decision::Allow,
                    1 => Decision::Refuse(Errno::ENOSYS),
                    _ => EVEN,
                };
                (step * 2, decision)
            })
            .collect();
        let program = compile(7, Decision::Refuse(Errno::EXDEV), &steps);
        check(&program);
        let arguments = [0, 1, 0x2_0000_0000, 0x104_0000_0002, 0x2_0000_0001, 0x3_0000_0000];
        for number in (0..1410).chain([0x4000_0000, u32::MAX]) {
            let (_, decision) = steps.iter().rev().find(|(from, _)| *from <= number).unwrap();
            for argument in arguments {
                let call = Call { arch: 7, ..Call::new(number) }.with(0, argument);
                assert_eq!(run(&program, &call), decision.answer(&call), "{call:?}");
                let foreign = Call { arch: 8, ..call };
                assert_eq!(run(&program, &foreign), refusal(Errno::EXDEV));
            }
        }
    }

    #[test]
    fn equal_decisions_are_written_once() {
        let steps = |count: u32| (0..count).map(|step| (step, EVEN)).collect::<Vec<_>>();
        let length = |count| compile(7, Decision::Allow, &steps(count)).len();
        // An additional step costs a comparison and sometimes a jump, but not another copy of the check.
        assert!(length(64) < length(1) + 2 * 63);
    }
}
