//! Lists the numbers of system calls: those of libc, and those that libc lacks for either architecture. From 403 on,
//! a call has the same number on every architecture (arch/x86/entry/syscalls/syscall_64.tbl, scripts/syscall.tbl).
#![expect(non_upper_case_globals, reason = "the names of libc, which is a source of this table")]

use libc::c_long;

pub(super) use libc::*;

pub(super) const SYS_cachestat: c_long = 451;
pub(super) const SYS_map_shadow_stack: c_long = 453;
pub(super) const SYS_futex_wake: c_long = 454;
pub(super) const SYS_futex_wait: c_long = 455;
pub(super) const SYS_futex_requeue: c_long = 456;
pub(super) const SYS_statmount: c_long = 457;
pub(super) const SYS_listmount: c_long = 458;
pub(super) const SYS_lsm_get_self_attr: c_long = 459;
pub(super) const SYS_lsm_set_self_attr: c_long = 460;
pub(super) const SYS_lsm_list_modules: c_long = 461;
pub(super) const SYS_setxattrat: c_long = 463;
pub(super) const SYS_getxattrat: c_long = 464;
pub(super) const SYS_listxattrat: c_long = 465;
pub(super) const SYS_removexattrat: c_long = 466;
pub(super) const SYS_open_tree_attr: c_long = 467;

#[cfg(target_arch = "x86_64")]
pub(super) const SYS_io_pgetevents: c_long = 333;
#[cfg(target_arch = "x86_64")]
pub(super) const SYS_uretprobe: c_long = 335;
#[cfg(target_arch = "x86_64")]
pub(super) const SYS_uprobe: c_long = 336;

#[cfg(target_arch = "aarch64")]
pub(super) const SYS_renameat: c_long = 38;
#[cfg(target_arch = "aarch64")]
pub(super) const SYS_sync_file_range: c_long = 84;
#[cfg(target_arch = "aarch64")]
pub(super) const SYS_getrlimit: c_long = 163;
#[cfg(target_arch = "aarch64")]
pub(super) const SYS_setrlimit: c_long = 164;
#[cfg(target_arch = "aarch64")]
pub(super) const SYS_io_pgetevents: c_long = 292;
#[cfg(target_arch = "aarch64")]
pub(super) const SYS_kexec_file_load: c_long = 294;
#[cfg(target_arch = "aarch64")]
pub(super) const SYS_fchmodat2: c_long = 452;
