//! What the example needs of skep.h (SKEP_VERSION 9), written by hand: `bindgen skep.h` makes all of it.

#![allow(non_camel_case_types)]

use std::os::raw::{c_char, c_int, c_void};

pub const KEY: usize = 32;
pub const OP_LOAD: u32 = 5;
pub const OP_SAVE: u32 = 6;

#[repr(C)]
pub struct skep_error {
    pub code: i32,
    pub message: [c_char; 252],
}

#[repr(C)]
pub struct skep_scope {
    pub namespace_id: u32,
    pub salt_bytes: u32,
    pub salt: *const c_void,
}

#[repr(C)]
pub struct skep_op {
    pub size: u32,
    pub what: u32,
    pub tag: u64,
    pub scope: *const skep_scope,
    pub keys: *const c_void,
    pub parent: *const c_void,
    pub n: u32,
    pub depth: u32,
    pub blocks: *const *mut c_void,
    pub lengths: *const i64,
    pub lease: u64,
    pub lease_ms: i64,
    pub bytes: i64,
    pub timeout_ms: i64,
    pub future: *const c_void,
    pub results: *mut u8,
    pub reasons: *mut u8,
}

#[repr(C)]
pub struct skep_done {
    pub tag: u64,
    pub code: i32,
    pub what: u32,
    pub blocks: i64,
    pub tokens: i64,
    pub bytes: i64,
    pub lease: u64,
    pub message: [c_char; 80],
}

#[link(name = "skep")]
extern "C" {
    pub fn skep_open(json: *const c_char, out: *mut u64, err: *mut skep_error) -> c_int;
    pub fn skep_close(s: u64, err: *mut skep_error) -> c_int;
    pub fn skep_namespace(s: u64, json: *const c_char, id: *mut u32, err: *mut skep_error) -> c_int;
    pub fn skep_queue_open(s: u64, depth: u32, out: *mut u64, eventfd: *mut c_int, err: *mut skep_error) -> c_int;
    pub fn skep_submit(q: u64, ops: *const skep_op, n: u32, taken: *mut u32, err: *mut skep_error) -> c_int;
    pub fn skep_drain(q: u64, into: *mut skep_done, n: u32, got: *mut u32, err: *mut skep_error) -> c_int;
    pub fn skep_queue_close(q: u64, timeout_ms: i64, err: *mut skep_error) -> c_int;
}
