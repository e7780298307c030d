//! Simulates the kernel for tests: runs a classic BPF program on one call, and rejects programs that the kernel would
//! reject (`seccomp_check_filter`, `bpf_check_classic`).

use libc::sock_filter;

use super::assembler::{AND, JUMP, JUMP_ANY_BIT, JUMP_AT_LEAST, JUMP_EQUAL, LOAD, RETURN};
use super::syscall_table::ARCH;

/// `BPF_MAXINSNS`.
pub(super) const MAX_INSTRUCTIONS: usize = 4096;

/// A call as a filter sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct SimulatedCall {
    pub(super) number: u32,
    pub(super) arch: u32,
    pub(super) arguments: [u64; 6],
}

impl SimulatedCall {
    /// Returns a call with this architecture's calling convention and zero arguments.
    pub(super) fn new(number: u32) -> Self {
        Self { number, arch: ARCH, arguments: [0; 6] }
    }

    pub(super) fn with_argument(mut self, argument: usize, value: u64) -> Self {
        self.arguments[argument] = value;
        self
    }

    fn load_word(&self, offset: u32) -> u32 {
        let mut bytes = Vec::from(self.number.to_ne_bytes());
        bytes.extend(self.arch.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(self.arguments.iter().flat_map(|argument| argument.to_ne_bytes()));
        let at = usize::try_from(offset).unwrap();
        assert_eq!(at % 4, 0, "the kernel accepts only aligned offsets");
        u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
    }
}

/// Returns the program's answer. Panics if the program leaves its bounds.
pub(super) fn run_program(program: &[sock_filter], call: &SimulatedCall) -> u32 {
    let (mut at, mut accumulator) = (0, 0_u32);
    loop {
        let sock_filter { code, jt, jf, k } = program[at];
        let branch = |taken: bool| usize::from(if taken { jt } else { jf });
        at += 1;
        match code {
            LOAD => accumulator = call.load_word(k),
            AND => accumulator &= k,
            JUMP => at += usize::try_from(k).unwrap(),
            JUMP_EQUAL => at += branch(accumulator == k),
            JUMP_AT_LEAST => at += branch(accumulator >= k),
            JUMP_ANY_BIT => at += branch(accumulator & k != 0),
            RETURN => return k,
            other => panic!("{other:#x} at {at} is an unknown instruction"),
        }
    }
}

/// Performs the kernel's checks of a program: its length, that every jump stays inside, and that the last instruction
/// returns.
pub(super) fn check_program(program: &[sock_filter]) {
    assert!((1..MAX_INSTRUCTIONS).contains(&program.len()));
    assert_eq!(program.last().unwrap().code, RETURN);
    for (at, instruction) in program.iter().enumerate() {
        let furthest = match instruction.code {
            JUMP => usize::try_from(instruction.k).unwrap(),
            JUMP_EQUAL | JUMP_AT_LEAST | JUMP_ANY_BIT => usize::from(instruction.jt.max(instruction.jf)),
            _ => 0,
        };
        let next = if instruction.code == RETURN { at } else { at + 1 + furthest };
        assert!(next < program.len(), "instruction {at} leaves the program");
    }
}
