//! All of skep.h: written by bindings.sh.

#![allow(non_camel_case_types, dead_code)]

#[link(name = "skep")]
extern "C" {}

pub const SKEP_VERSION: u32 = 12;
pub const SKEP_KEY: u32 = 32;
pub const SKEP_WANTED: u32 = 255;
pub type skep_store = u64;
pub type skep_stream = u64;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct skep_error {
    pub code: i32,
    pub message: [::std::os::raw::c_char; 252usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of skep_error"][::std::mem::size_of::<skep_error>() - 256usize];
    ["Alignment of skep_error"][::std::mem::align_of::<skep_error>() - 4usize];
    ["Offset of field: skep_error::code"][::std::mem::offset_of!(skep_error, code) - 0usize];
    ["Offset of field: skep_error::message"][::std::mem::offset_of!(skep_error, message) - 4usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct skep_scope {
    pub namespace_id: u32,
    pub salt_bytes: u32,
    pub salt: *const ::std::os::raw::c_void,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of skep_scope"][::std::mem::size_of::<skep_scope>() - 16usize];
    ["Alignment of skep_scope"][::std::mem::align_of::<skep_scope>() - 8usize];
    ["Offset of field: skep_scope::namespace_id"][::std::mem::offset_of!(skep_scope, namespace_id) - 0usize];
    ["Offset of field: skep_scope::salt_bytes"][::std::mem::offset_of!(skep_scope, salt_bytes) - 4usize];
    ["Offset of field: skep_scope::salt"][::std::mem::offset_of!(skep_scope, salt) - 8usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct skep_found {
    pub blocks: i64,
    pub tokens: i64,
    pub bytes: i64,
    pub lease: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of skep_found"][::std::mem::size_of::<skep_found>() - 32usize];
    ["Alignment of skep_found"][::std::mem::align_of::<skep_found>() - 8usize];
    ["Offset of field: skep_found::blocks"][::std::mem::offset_of!(skep_found, blocks) - 0usize];
    ["Offset of field: skep_found::tokens"][::std::mem::offset_of!(skep_found, tokens) - 8usize];
    ["Offset of field: skep_found::bytes"][::std::mem::offset_of!(skep_found, bytes) - 16usize];
    ["Offset of field: skep_found::lease"][::std::mem::offset_of!(skep_found, lease) - 24usize];
};
pub const SKEP_HND: _bindgen_ty_1 = 0;
pub const SKEP_NHD: _bindgen_ty_1 = 1;
pub type _bindgen_ty_1 = ::std::os::raw::c_uint;
pub const SKEP_HOST: _bindgen_ty_2 = 0;
pub const SKEP_DEVICE: _bindgen_ty_2 = 1;
pub const SKEP_CUDA: _bindgen_ty_2 = 2;
pub type _bindgen_ty_2 = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct skep_paged {
    pub order: u32,
    pub where_: u32,
    pub layers: u32,
    pub page_tokens: u32,
    pub page_stride: i64,
    pub plane_bytes: i64,
    pub k: *const u64,
    pub v: *const u64,
    pub slots: *const i64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of skep_paged"][::std::mem::size_of::<skep_paged>() - 56usize];
    ["Alignment of skep_paged"][::std::mem::align_of::<skep_paged>() - 8usize];
    ["Offset of field: skep_paged::order"][::std::mem::offset_of!(skep_paged, order) - 0usize];
    ["Offset of field: skep_paged::where_"][::std::mem::offset_of!(skep_paged, where_) - 4usize];
    ["Offset of field: skep_paged::layers"][::std::mem::offset_of!(skep_paged, layers) - 8usize];
    ["Offset of field: skep_paged::page_tokens"][::std::mem::offset_of!(skep_paged, page_tokens) - 12usize];
    ["Offset of field: skep_paged::page_stride"][::std::mem::offset_of!(skep_paged, page_stride) - 16usize];
    ["Offset of field: skep_paged::plane_bytes"][::std::mem::offset_of!(skep_paged, plane_bytes) - 24usize];
    ["Offset of field: skep_paged::k"][::std::mem::offset_of!(skep_paged, k) - 32usize];
    ["Offset of field: skep_paged::v"][::std::mem::offset_of!(skep_paged, v) - 40usize];
    ["Offset of field: skep_paged::slots"][::std::mem::offset_of!(skep_paged, slots) - 48usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct skep_cost {
    pub fixed_ns: i64,
    pub per_token_ns: i64,
    pub per_square_ns: f64,
    pub suffix: i64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of skep_cost"][::std::mem::size_of::<skep_cost>() - 32usize];
    ["Alignment of skep_cost"][::std::mem::align_of::<skep_cost>() - 8usize];
    ["Offset of field: skep_cost::fixed_ns"][::std::mem::offset_of!(skep_cost, fixed_ns) - 0usize];
    ["Offset of field: skep_cost::per_token_ns"][::std::mem::offset_of!(skep_cost, per_token_ns) - 8usize];
    ["Offset of field: skep_cost::per_square_ns"][::std::mem::offset_of!(skep_cost, per_square_ns) - 16usize];
    ["Offset of field: skep_cost::suffix"][::std::mem::offset_of!(skep_cost, suffix) - 24usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct skep_claimed {
    pub from: i64,
    pub to: i64,
    pub jump: i64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of skep_claimed"][::std::mem::size_of::<skep_claimed>() - 24usize];
    ["Alignment of skep_claimed"][::std::mem::align_of::<skep_claimed>() - 8usize];
    ["Offset of field: skep_claimed::from"][::std::mem::offset_of!(skep_claimed, from) - 0usize];
    ["Offset of field: skep_claimed::to"][::std::mem::offset_of!(skep_claimed, to) - 8usize];
    ["Offset of field: skep_claimed::jump"][::std::mem::offset_of!(skep_claimed, jump) - 16usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct skep_hints {
    pub pin_ms: i64,
    pub next_use_ms: i64,
    pub ttl_ms: i64,
    pub steps: i32,
    pub drop: i32,
    pub program: *const ::std::os::raw::c_char,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of skep_hints"][::std::mem::size_of::<skep_hints>() - 40usize];
    ["Alignment of skep_hints"][::std::mem::align_of::<skep_hints>() - 8usize];
    ["Offset of field: skep_hints::pin_ms"][::std::mem::offset_of!(skep_hints, pin_ms) - 0usize];
    ["Offset of field: skep_hints::next_use_ms"][::std::mem::offset_of!(skep_hints, next_use_ms) - 8usize];
    ["Offset of field: skep_hints::ttl_ms"][::std::mem::offset_of!(skep_hints, ttl_ms) - 16usize];
    ["Offset of field: skep_hints::steps"][::std::mem::offset_of!(skep_hints, steps) - 24usize];
    ["Offset of field: skep_hints::drop"][::std::mem::offset_of!(skep_hints, drop) - 28usize];
    ["Offset of field: skep_hints::program"][::std::mem::offset_of!(skep_hints, program) - 32usize];
};
pub type skep_events = u64;
pub const SKEP_EVENT_ACCEPTED: _bindgen_ty_3 = 1;
pub const SKEP_EVENT_COMMITTED: _bindgen_ty_3 = 2;
pub const SKEP_EVENT_EVICTED: _bindgen_ty_3 = 3;
pub const SKEP_EVENT_MOVED: _bindgen_ty_3 = 4;
pub const SKEP_EVENT_DAMAGED: _bindgen_ty_3 = 5;
pub const SKEP_EVENT_DELETED: _bindgen_ty_3 = 6;
pub const SKEP_EVENT_PURGED: _bindgen_ty_3 = 7;
pub const SKEP_EVENT_GAP: _bindgen_ty_3 = 8;
pub const SKEP_EVENT_STORED: _bindgen_ty_3 = 9;
pub const SKEP_EVENT_DEVICE: _bindgen_ty_3 = 10;
pub type _bindgen_ty_3 = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct skep_event {
    pub epoch: u64,
    pub seq: u64,
    pub unix_ns: i64,
    pub lost: u64,
    pub namespace_id: u32,
    pub depth: u32,
    pub kind: u8,
    pub tier: u8,
    pub reason: u8,
    pub salted: u8,
    pub has_parent: u8,
    pub zero: [u8; 3usize],
    pub key: [u8; 32usize],
    pub parent: [u8; 32usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of skep_event"][::std::mem::size_of::<skep_event>() - 112usize];
    ["Alignment of skep_event"][::std::mem::align_of::<skep_event>() - 8usize];
    ["Offset of field: skep_event::epoch"][::std::mem::offset_of!(skep_event, epoch) - 0usize];
    ["Offset of field: skep_event::seq"][::std::mem::offset_of!(skep_event, seq) - 8usize];
    ["Offset of field: skep_event::unix_ns"][::std::mem::offset_of!(skep_event, unix_ns) - 16usize];
    ["Offset of field: skep_event::lost"][::std::mem::offset_of!(skep_event, lost) - 24usize];
    ["Offset of field: skep_event::namespace_id"][::std::mem::offset_of!(skep_event, namespace_id) - 32usize];
    ["Offset of field: skep_event::depth"][::std::mem::offset_of!(skep_event, depth) - 36usize];
    ["Offset of field: skep_event::kind"][::std::mem::offset_of!(skep_event, kind) - 40usize];
    ["Offset of field: skep_event::tier"][::std::mem::offset_of!(skep_event, tier) - 41usize];
    ["Offset of field: skep_event::reason"][::std::mem::offset_of!(skep_event, reason) - 42usize];
    ["Offset of field: skep_event::salted"][::std::mem::offset_of!(skep_event, salted) - 43usize];
    ["Offset of field: skep_event::has_parent"][::std::mem::offset_of!(skep_event, has_parent) - 44usize];
    ["Offset of field: skep_event::zero"][::std::mem::offset_of!(skep_event, zero) - 45usize];
    ["Offset of field: skep_event::key"][::std::mem::offset_of!(skep_event, key) - 48usize];
    ["Offset of field: skep_event::parent"][::std::mem::offset_of!(skep_event, parent) - 80usize];
};
pub type skep_writer = u64;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct skep_part {
    pub name: *const ::std::os::raw::c_char,
    pub bytes: i64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of skep_part"][::std::mem::size_of::<skep_part>() - 16usize];
    ["Alignment of skep_part"][::std::mem::align_of::<skep_part>() - 8usize];
    ["Offset of field: skep_part::name"][::std::mem::offset_of!(skep_part, name) - 0usize];
    ["Offset of field: skep_part::bytes"][::std::mem::offset_of!(skep_part, bytes) - 8usize];
};
pub type skep_queue = u64;
pub const SKEP_OP_LOOKUP: _bindgen_ty_4 = 1;
pub const SKEP_OP_LOOKUP_EACH: _bindgen_ty_4 = 2;
pub const SKEP_OP_EXISTS: _bindgen_ty_4 = 3;
pub const SKEP_OP_WANT: _bindgen_ty_4 = 4;
pub const SKEP_OP_LOAD: _bindgen_ty_4 = 5;
pub const SKEP_OP_SAVE: _bindgen_ty_4 = 6;
pub const SKEP_OP_SAVE_ACCEPTED: _bindgen_ty_4 = 7;
pub const SKEP_OP_DELETE: _bindgen_ty_4 = 8;
pub const SKEP_OP_HINT: _bindgen_ty_4 = 9;
pub const SKEP_OP_RENEW: _bindgen_ty_4 = 10;
pub const SKEP_OP_RELEASE: _bindgen_ty_4 = 11;
pub const SKEP_OP_FLUSH: _bindgen_ty_4 = 12;
pub const SKEP_OP_RESTORE: _bindgen_ty_4 = 13;
pub const SKEP_OP_BEGIN: _bindgen_ty_4 = 14;
pub const SKEP_OP_WRITE: _bindgen_ty_4 = 15;
pub const SKEP_OP_COMMIT: _bindgen_ty_4 = 16;
pub const SKEP_OP_COMMIT_ACCEPTED: _bindgen_ty_4 = 17;
pub const SKEP_OP_ABORT: _bindgen_ty_4 = 18;
pub type _bindgen_ty_4 = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct skep_op {
    pub size: u32,
    pub what: u32,
    pub tag: u64,
    pub scope: *const skep_scope,
    pub keys: *const ::std::os::raw::c_void,
    pub parent: *const ::std::os::raw::c_void,
    pub n: u32,
    pub depth: u32,
    pub blocks: *const *mut ::std::os::raw::c_void,
    pub lengths: *const i64,
    pub lease: u64,
    pub lease_ms: i64,
    pub bytes: i64,
    pub timeout_ms: i64,
    pub future: *const skep_hints,
    pub results: *mut u8,
    pub reasons: *mut u8,
    pub pieces: *const u32,
    pub part: *const ::std::os::raw::c_char,
    pub dest: *const skep_paged,
    pub stream: skep_stream,
    pub writer: skep_writer,
    pub parts: *const skep_part,
    pub offset: i64,
    pub from: u32,
    pub to: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of skep_op"][::std::mem::size_of::<skep_op>() - 184usize];
    ["Alignment of skep_op"][::std::mem::align_of::<skep_op>() - 8usize];
    ["Offset of field: skep_op::size"][::std::mem::offset_of!(skep_op, size) - 0usize];
    ["Offset of field: skep_op::what"][::std::mem::offset_of!(skep_op, what) - 4usize];
    ["Offset of field: skep_op::tag"][::std::mem::offset_of!(skep_op, tag) - 8usize];
    ["Offset of field: skep_op::scope"][::std::mem::offset_of!(skep_op, scope) - 16usize];
    ["Offset of field: skep_op::keys"][::std::mem::offset_of!(skep_op, keys) - 24usize];
    ["Offset of field: skep_op::parent"][::std::mem::offset_of!(skep_op, parent) - 32usize];
    ["Offset of field: skep_op::n"][::std::mem::offset_of!(skep_op, n) - 40usize];
    ["Offset of field: skep_op::depth"][::std::mem::offset_of!(skep_op, depth) - 44usize];
    ["Offset of field: skep_op::blocks"][::std::mem::offset_of!(skep_op, blocks) - 48usize];
    ["Offset of field: skep_op::lengths"][::std::mem::offset_of!(skep_op, lengths) - 56usize];
    ["Offset of field: skep_op::lease"][::std::mem::offset_of!(skep_op, lease) - 64usize];
    ["Offset of field: skep_op::lease_ms"][::std::mem::offset_of!(skep_op, lease_ms) - 72usize];
    ["Offset of field: skep_op::bytes"][::std::mem::offset_of!(skep_op, bytes) - 80usize];
    ["Offset of field: skep_op::timeout_ms"][::std::mem::offset_of!(skep_op, timeout_ms) - 88usize];
    ["Offset of field: skep_op::future"][::std::mem::offset_of!(skep_op, future) - 96usize];
    ["Offset of field: skep_op::results"][::std::mem::offset_of!(skep_op, results) - 104usize];
    ["Offset of field: skep_op::reasons"][::std::mem::offset_of!(skep_op, reasons) - 112usize];
    ["Offset of field: skep_op::pieces"][::std::mem::offset_of!(skep_op, pieces) - 120usize];
    ["Offset of field: skep_op::part"][::std::mem::offset_of!(skep_op, part) - 128usize];
    ["Offset of field: skep_op::dest"][::std::mem::offset_of!(skep_op, dest) - 136usize];
    ["Offset of field: skep_op::stream"][::std::mem::offset_of!(skep_op, stream) - 144usize];
    ["Offset of field: skep_op::writer"][::std::mem::offset_of!(skep_op, writer) - 152usize];
    ["Offset of field: skep_op::parts"][::std::mem::offset_of!(skep_op, parts) - 160usize];
    ["Offset of field: skep_op::offset"][::std::mem::offset_of!(skep_op, offset) - 168usize];
    ["Offset of field: skep_op::from"][::std::mem::offset_of!(skep_op, from) - 176usize];
    ["Offset of field: skep_op::to"][::std::mem::offset_of!(skep_op, to) - 180usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct skep_done {
    pub tag: u64,
    pub code: i32,
    pub what: u32,
    pub blocks: i64,
    pub tokens: i64,
    pub bytes: i64,
    pub lease: u64,
    pub message: [::std::os::raw::c_char; 80usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of skep_done"][::std::mem::size_of::<skep_done>() - 128usize];
    ["Alignment of skep_done"][::std::mem::align_of::<skep_done>() - 8usize];
    ["Offset of field: skep_done::tag"][::std::mem::offset_of!(skep_done, tag) - 0usize];
    ["Offset of field: skep_done::code"][::std::mem::offset_of!(skep_done, code) - 8usize];
    ["Offset of field: skep_done::what"][::std::mem::offset_of!(skep_done, what) - 12usize];
    ["Offset of field: skep_done::blocks"][::std::mem::offset_of!(skep_done, blocks) - 16usize];
    ["Offset of field: skep_done::tokens"][::std::mem::offset_of!(skep_done, tokens) - 24usize];
    ["Offset of field: skep_done::bytes"][::std::mem::offset_of!(skep_done, bytes) - 32usize];
    ["Offset of field: skep_done::lease"][::std::mem::offset_of!(skep_done, lease) - 40usize];
    ["Offset of field: skep_done::message"][::std::mem::offset_of!(skep_done, message) - 48usize];
};
pub type skep_restoring = u64;
pub type skep_prefill = u64;
pub const SKEP_WAITING: _bindgen_ty_5 = 0;
pub const SKEP_LANDED: _bindgen_ty_5 = 1;
pub const SKEP_GRANTED: _bindgen_ty_5 = 2;
pub const SKEP_MISSED: _bindgen_ty_5 = 3;
pub type _bindgen_ty_5 = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct skep_word {
    pub word: *mut u64,
    pub block_tokens: i64,
    pub tokens: i64,
    pub last: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of skep_word"][::std::mem::size_of::<skep_word>() - 32usize];
    ["Alignment of skep_word"][::std::mem::align_of::<skep_word>() - 8usize];
    ["Offset of field: skep_word::word"][::std::mem::offset_of!(skep_word, word) - 0usize];
    ["Offset of field: skep_word::block_tokens"][::std::mem::offset_of!(skep_word, block_tokens) - 8usize];
    ["Offset of field: skep_word::tokens"][::std::mem::offset_of!(skep_word, tokens) - 16usize];
    ["Offset of field: skep_word::last"][::std::mem::offset_of!(skep_word, last) - 24usize];
};
extern "C" {
    pub fn skep_open(
        json: *const ::std::os::raw::c_char,
        out: *mut skep_store,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_close(s: skep_store, err: *mut skep_error) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_version() -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_forked() -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_namespace(
        s: skep_store,
        json: *const ::std::os::raw::c_char,
        id: *mut u32,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_namespace_within(
        s: skep_store,
        json: *const ::std::os::raw::c_char,
        timeout_ms: i64,
        id: *mut u32,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_put(
        s: skep_store,
        scope: *const skep_scope,
        parent: *const ::std::os::raw::c_void,
        depth: u32,
        keys: *const ::std::os::raw::c_void,
        n: u32,
        blocks: *const *const ::std::os::raw::c_void,
        block_bytes: i64,
        outcomes: *mut u8,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_lookup(
        s: skep_store,
        scope: *const skep_scope,
        keys: *const ::std::os::raw::c_void,
        n: u32,
        lease_ms: i64,
        out: *mut skep_found,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_lookup_within(
        s: skep_store,
        scope: *const skep_scope,
        keys: *const ::std::os::raw::c_void,
        n: u32,
        lease_ms: i64,
        timeout_ms: i64,
        out: *mut skep_found,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_release(s: skep_store, lease: u64, err: *mut skep_error) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_lookup_each(
        s: skep_store,
        scope: *const skep_scope,
        keys: *const ::std::os::raw::c_void,
        n: u32,
        lease_ms: i64,
        timeout_ms: i64,
        found: *mut u8,
        lease: *mut u64,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_renew(s: skep_store, lease: u64, lease_ms: i64, err: *mut skep_error) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_exists(
        s: skep_store,
        scope: *const skep_scope,
        keys: *const ::std::os::raw::c_void,
        n: u32,
        timeout_ms: i64,
        tiers: *mut u8,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_load(
        s: skep_store,
        scope: *const skep_scope,
        keys: *const ::std::os::raw::c_void,
        n: u32,
        lease: u64,
        blocks: *const *mut ::std::os::raw::c_void,
        lengths: *const i64,
        timeout_ms: i64,
        results: *mut u8,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_save(
        s: skep_store,
        scope: *const skep_scope,
        parent: *const ::std::os::raw::c_void,
        depth: u32,
        keys: *const ::std::os::raw::c_void,
        n: u32,
        blocks: *const *const ::std::os::raw::c_void,
        lengths: *const i64,
        timeout_ms: i64,
        outcomes: *mut u8,
        reasons: *mut u8,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_save_accepted(
        s: skep_store,
        scope: *const skep_scope,
        parent: *const ::std::os::raw::c_void,
        depth: u32,
        keys: *const ::std::os::raw::c_void,
        n: u32,
        blocks: *const *const ::std::os::raw::c_void,
        lengths: *const i64,
        timeout_ms: i64,
        outcomes: *mut u8,
        reasons: *mut u8,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_flush(s: skep_store, timeout_ms: i64, err: *mut skep_error) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_want(
        s: skep_store,
        scope: *const skep_scope,
        keys: *const ::std::os::raw::c_void,
        n: u32,
        bytes: i64,
        timeout_ms: i64,
        outcomes: *mut u8,
        reasons: *mut u8,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_delete(
        s: skep_store,
        scope: *const skep_scope,
        keys: *const ::std::os::raw::c_void,
        n: u32,
        timeout_ms: i64,
        deleted: *mut u32,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_hint(
        s: skep_store,
        scope: *const skep_scope,
        keys: *const ::std::os::raw::c_void,
        n: u32,
        future: *const skep_hints,
        timeout_ms: i64,
        known: *mut u32,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_purge(
        s: skep_store,
        tenant: *const ::std::os::raw::c_char,
        model: *const ::std::os::raw::c_char,
        scope: *const skep_scope,
        timeout_ms: i64,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_namespace_delete(
        s: skep_store,
        id: u32,
        timeout_ms: i64,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_list(
        s: skep_store,
        id: u32,
        place: *mut u64,
        keys: *mut ::std::os::raw::c_void,
        n: u32,
        timeout_ms: i64,
        count: *mut u32,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_stats(
        s: skep_store,
        timeout_ms: i64,
        json: *mut ::std::os::raw::c_char,
        room: u64,
        bytes: *mut u64,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_events_open(
        s: skep_store,
        epoch: u64,
        seq: u64,
        snapshot: ::std::os::raw::c_int,
        out: *mut skep_events,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_events_next(
        e: skep_events,
        timeout_ms: i64,
        into: *mut skep_event,
        n: u32,
        got: *mut u32,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_events_close(e: skep_events, err: *mut skep_error) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_begin(
        s: skep_store,
        scope: *const skep_scope,
        parent: *const ::std::os::raw::c_void,
        depth: u32,
        key: *const ::std::os::raw::c_void,
        parts: *const skep_part,
        n: u32,
        life_ms: i64,
        out: *mut skep_writer,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_write(
        w: skep_writer,
        part: *const ::std::os::raw::c_char,
        offset: i64,
        bytes: *const ::std::os::raw::c_void,
        n: i64,
        timeout_ms: i64,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_commit(
        w: skep_writer,
        accepted: ::std::os::raw::c_int,
        timeout_ms: i64,
        outcome: *mut u8,
        reason: *mut u8,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_abort(w: skep_writer, err: *mut skep_error) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_load_part(
        s: skep_store,
        scope: *const skep_scope,
        part: *const ::std::os::raw::c_char,
        keys: *const ::std::os::raw::c_void,
        n: u32,
        lease: u64,
        blocks: *const *mut ::std::os::raw::c_void,
        lengths: *const i64,
        timeout_ms: i64,
        results: *mut u8,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_queue_open(
        s: skep_store,
        depth: u32,
        out: *mut skep_queue,
        eventfd: *mut ::std::os::raw::c_int,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_submit(
        q: skep_queue,
        ops: *const skep_op,
        n: u32,
        taken: *mut u32,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_drain(
        q: skep_queue,
        into: *mut skep_done,
        n: u32,
        got: *mut u32,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_queue_close(q: skep_queue, timeout_ms: i64, err: *mut skep_error) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_direct(s: skep_store, timeout_ms: i64, err: *mut skep_error) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_restore(
        s: skep_store,
        scope: *const skep_scope,
        keys: *const ::std::os::raw::c_void,
        n: u32,
        from: u32,
        to: u32,
        dest: *const skep_paged,
        stream: skep_stream,
        timeout_ms: i64,
        blocks: *mut u32,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_restore_layers(
        s: skep_store,
        scope: *const skep_scope,
        keys: *const ::std::os::raw::c_void,
        n: u32,
        from: u32,
        to: u32,
        first: u32,
        last: u32,
        dest: *const skep_paged,
        stream: skep_stream,
        timeout_ms: i64,
        blocks: *mut u32,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_restore_begin(
        s: skep_store,
        scope: *const skep_scope,
        keys: *const ::std::os::raw::c_void,
        n: u32,
        from: u32,
        to: u32,
        dest: *const skep_paged,
        stream: skep_stream,
        cost: *const skep_cost,
        word: *mut u64,
        timeout_ms: i64,
        out: *mut skep_restoring,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_claim(
        r: skep_restoring,
        from: i64,
        to: i64,
        idle: ::std::os::raw::c_int,
        out: *mut skep_claimed,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_computed(
        r: skep_restoring,
        from: i64,
        to: i64,
        took_ns: i64,
        other_ns: i64,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_restore_poll(
        r: skep_restoring,
        timeout_ms: i64,
        states: *mut u8,
        waiting: *mut u32,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_restore_end(r: skep_restoring, timeout_ms: i64, err: *mut skep_error) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_prefill_begin(
        s: skep_store,
        scope: *const skep_scope,
        keys: *const ::std::os::raw::c_void,
        n: u32,
        history: u32,
        timeout_ms: i64,
        out: *mut skep_prefill,
        found: *mut u32,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_prefill_places(
        p: skep_prefill,
        layer: u32,
        at: *mut u64,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_prefill_step(p: skep_prefill, to: u32, err: *mut skep_error) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_prefill_loaded(
        p: skep_prefill,
        n: u32,
        stream: skep_stream,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_prefill_written(
        p: skep_prefill,
        n: u32,
        stream: skep_stream,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_prefill_read(
        p: skep_prefill,
        n: u32,
        stream: skep_stream,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_prefill_commit(
        p: skep_prefill,
        timeout_ms: i64,
        stored: *mut u32,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_prefill_end(p: skep_prefill, timeout_ms: i64, err: *mut skep_error) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_word_claim_call(
        word: *mut u64,
        last: *mut u64,
        block_tokens: i64,
        tokens: i64,
        from: i64,
        to: i64,
        idle: ::std::os::raw::c_int,
        out: *mut skep_claimed,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_shared_alloc(
        s: skep_store,
        bytes: i64,
        memory: *mut *mut ::std::os::raw::c_void,
        fd: *mut ::std::os::raw::c_int,
        offset: *mut i64,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_shared_free(
        s: skep_store,
        memory: *mut ::std::os::raw::c_void,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_mem_register(
        s: skep_store,
        memory: *mut ::std::os::raw::c_void,
        bytes: i64,
        fd: ::std::os::raw::c_int,
        offset: i64,
        timeout_ms: i64,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_mem_unregister(
        s: skep_store,
        memory: *mut ::std::os::raw::c_void,
        timeout_ms: i64,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_device_alloc(
        s: skep_store,
        bytes: i64,
        address: *mut u64,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_device_free(s: skep_store, address: u64, err: *mut skep_error) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_device_read(
        s: skep_store,
        address: u64,
        bytes: i64,
        to: *mut ::std::os::raw::c_void,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_device_write(
        s: skep_store,
        address: u64,
        bytes: i64,
        from: *const ::std::os::raw::c_void,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_stream_copy(
        s: skep_store,
        stream: skep_stream,
        to: u64,
        from: u64,
        bytes: i64,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_stream_new(s: skep_store, out: *mut skep_stream, err: *mut skep_error) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_stream_sync(
        s: skep_store,
        stream: skep_stream,
        timeout_ms: i64,
        err: *mut skep_error,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn skep_stream_free(s: skep_store, stream: skep_stream, err: *mut skep_error) -> ::std::os::raw::c_int;
}
