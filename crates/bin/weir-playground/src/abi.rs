//! The functions that the page calls. A request and its answer are JSON in one buffer.

#![allow(unsafe_code, reason = "the compiler cannot check that an exported name is unique")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Playground;

struct State {
    playground: Playground,
    buffer: Vec<u8>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

/// A page has one thread, so the lock is always free.
fn state() -> MutexGuard<'static, Option<State>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes room for a request of this many bytes, and returns where the page writes it.
#[unsafe(no_mangle)]
extern "C" fn weir_input(length: usize) -> *mut u8 {
    let mut state = state();
    let state = state
        .get_or_insert_with(|| State { playground: Playground::default(), buffer: Vec::new() });
    state.buffer = vec![0; length];
    state.buffer.as_mut_ptr()
}

/// Answers the request, and returns the length of the answer in bytes.
#[unsafe(no_mangle)]
extern "C" fn weir_answer() -> usize {
    let mut state = state();
    let Some(state) = state.as_mut() else { return 0 };
    state.buffer = state.playground.answer(&state.buffer);
    state.buffer.len()
}

/// Where the page reads the answer.
#[unsafe(no_mangle)]
extern "C" fn weir_output() -> *const u8 {
    state().as_ref().map_or(std::ptr::null(), |state| state.buffer.as_ptr())
}
