//! Stores blocks in skep and has them back, from Rust, as an engine would: it submits, waits for the queue's descriptor
//! beside whatever else it waits for, and drains.
//!
//!     export RUSTFLAGS="-L $PWD/bin -C link-arg=-Wl,-rpath,$PWD/bin"
//!     cargo run --manifest-path tools/examples/rust/Cargo.toml -- DIR

mod skep;

use skep::*;
use std::ffi::{CStr, CString};
use std::mem::zeroed;
use std::os::raw::{c_int, c_short, c_void};
use std::ptr::null;

const BLOCKS: usize = 8;
const LENGTH: usize = 1 << 20;
const KEY: usize = SKEP_KEY as usize;

/// What the library says of a call.
#[derive(Debug)]
struct Error(#[allow(dead_code)] i32, #[allow(dead_code)] String);

fn check(rc: c_int, err: &skep_error) -> Result<(), Error> {
    if rc == 0 {
        return Ok(());
    }
    let text = unsafe { CStr::from_ptr(err.message.as_ptr()) };
    Err(Error(rc, text.to_string_lossy().into_owned()))
}

#[repr(C)]
struct PollFd {
    fd: c_int,
    events: c_short,
    revents: c_short,
}

extern "C" {
    fn poll(fds: *mut PollFd, n: std::os::raw::c_ulong, timeout_ms: c_int) -> c_int;
}

struct Queue {
    number: u64,
    eventfd: c_int,
}

impl Queue {
    fn open(store: u64, depth: u32) -> Result<Queue, Error> {
        let mut q = Queue { number: 0, eventfd: -1 };
        let mut err: skep_error = unsafe { zeroed() };
        let rc = unsafe { skep_queue_open(store, depth, &mut q.number, &mut q.eventfd, &mut err) };
        check(rc, &err)?;
        Ok(q)
    }

    /// Runs one operation a block: to `memory[i]` for a load, from it for a save. What each block became is returned.
    fn run(&self, what: u32, scope: &skep_scope, keys: &[[u8; KEY]], memory: &mut [Vec<u8>]) -> Result<Vec<u8>, Error> {
        let at: Vec<*mut c_void> = memory.iter_mut().map(|m| m.as_mut_ptr().cast()).collect();
        let lengths: Vec<i64> = memory.iter().map(|m| m.len() as i64).collect();
        let mut results = vec![255u8; keys.len()];
        let ops: Vec<skep_op> = (0..keys.len())
            .map(|i| skep_op {
                size: size_of::<skep_op>() as u32,
                what,
                tag: i as u64,
                scope,
                keys: keys[i].as_ptr().cast(),
                n: 1,
                blocks: &at[i],
                lengths: &lengths[i],
                results: &mut results[i],
                ..unsafe { zeroed() }
            })
            .collect();
        let mut err: skep_error = unsafe { zeroed() };
        let (mut begun, mut over) = (0, 0);
        while over < ops.len() {
            let mut taken = 0;
            let rest = &ops[begun..];
            check(unsafe { skep_submit(self.number, rest.as_ptr(), rest.len() as u32, &mut taken, &mut err) }, &err)?;
            begun += taken as usize;
            let mut wait = PollFd { fd: self.eventfd, events: 1, revents: 0 };
            unsafe { poll(&mut wait, 1, 60_000) };
            let (mut done, mut got): (skep_done, u32) = (unsafe { zeroed() }, 0);
            check(unsafe { skep_drain(self.number, &mut done, 1, &mut got, &mut err) }, &err)?;
            if got == 1 && done.code != 0 {
                return Err(Error(done.code, format!("block {}", done.tag)));
            }
            over += got as usize;
        }
        Ok(results)
    }
}

fn main() -> Result<(), Error> {
    let dir = match std::env::args().nth(1) {
        Some(arg) => arg,
        None => return Err(Error(1, "the directory of a store".into())),
    };
    let mut err: skep_error = unsafe { zeroed() };
    let (mut store, mut id) = (0, 0);
    let how = CString::new(format!(r#"{{"dir": "{dir}", "devices": 1, "capacity_bytes": 268435456}}"#)).unwrap();
    check(unsafe { skep_open(how.as_ptr(), &mut store, &mut err) }, &err)?;
    let space = CString::new(r#"{"name": "example", "shape": {"block_tokens": 1}}"#).unwrap();
    check(unsafe { skep_namespace(store, space.as_ptr(), &mut id, &mut err) }, &err)?;
    let scope = skep_scope { namespace_id: id, salt_bytes: 0, salt: null() };

    let keys: Vec<[u8; KEY]> = (0..BLOCKS).map(|i| [i as u8 + 1; KEY]).collect();
    let mut blocks: Vec<Vec<u8>> =
        (0..BLOCKS).map(|i| (0..LENGTH).map(|k| (i * 31 + k * 7 + (k >> 8)) as u8).collect()).collect();
    let mut places = vec![vec![0u8; LENGTH]; BLOCKS];
    let queue = Queue::open(store, 4)?;
    let stored = queue.run(SKEP_OP_SAVE, &scope, &keys, &mut blocks)?;
    let landed = queue.run(SKEP_OP_LOAD, &scope, &keys, &mut places)?;
    check(unsafe { skep_queue_close(queue.number, 0, &mut err) }, &err)?;
    check(unsafe { skep_close(store, &mut err) }, &err)?;
    let whole = (0..BLOCKS).filter(|&i| stored[i] == 1 && landed[i] == 0 && blocks[i] == places[i]).count();
    println!("{whole} blocks there and back");
    Ok(())
}
