//! The functions of `computenetwork.dll` and `vmcompute.dll` that weir calls.

#![allow(unsafe_code, reason = "a DLL that replaces another one")]
#![allow(non_snake_case, reason = "the names of Windows")]
#![allow(unreachable_pub, reason = "callers find them by name")]
#![allow(clippy::missing_safety_doc, reason = "Windows documents their safety")]

use std::{
    collections::BTreeMap,
    env,
    ffi::c_void,
    ptr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use serde_json::json;
use windows_sys::{
    Win32::System::{
        Com::CoTaskMemAlloc,
        HostComputeNetwork::{HCN_NOTIFICATION_CALLBACK, HcnNotificationNetworkEndpointAttached},
    },
    core::{GUID, HRESULT, PCWSTR, PWSTR},
};

use crate::{Fault, HnsService, Store};

/// The environment variable with the path of the state file.
const STATE: &str = "WEIR_HNS_FAKE";
/// The interval to poll for new endpoints.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

static HANDLES: Mutex<BTreeMap<usize, String>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicUsize = AtomicUsize::new(1);

fn store() -> Store {
    Store::at(env::var_os(STATE).unwrap_or_else(|| "weir-hns-fake.json".into()))
}

/// Records a call and applies the injected faults.
fn call<T>(
    name: &str,
    id: &str,
    act: impl FnOnce(&mut HnsService) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let broken = Fault { code: 0x8000_4005, text: "The fake cannot access its state file." };
    let begun = store().with(|service| service.begin(name, id));
    let (hang, fault) = begun.map_err(|_| broken.clone())?;
    thread::sleep(hang);
    match fault {
        Some(fault) => Err(fault),
        None => store().with(act).map_err(|_| broken)?,
    }
}

/// Writes the error record and returns the result code.
unsafe fn finish(done: Result<(), Fault>, record: *mut PWSTR) -> HRESULT {
    let Err(Fault { code, text }) = done else { return 0 };
    let error = json!({"Success": false, "Error": text, "ErrorCode": code}).to_string();
    // SAFETY: the caller passes a pointer for the record, or null.
    unsafe { give(record, &error) };
    code.cast_signed()
}

/// Allocates a text for the caller, who frees it.
unsafe fn give(to: *mut PWSTR, text: &str) {
    if to.is_null() {
        return;
    }
    let units: Vec<u16> = text.encode_utf16().chain([0]).collect();
    // SAFETY: the allocation has the length of the text; `to` is a pointer of the caller.
    unsafe {
        let copy = CoTaskMemAlloc(units.len() * 2).cast::<u16>();
        ptr::copy_nonoverlapping(units.as_ptr(), copy, units.len());
        *to = copy;
    }
}

unsafe fn read_wide_string(text: PCWSTR) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's text ends in a zero.
    let units = unsafe {
        let length = (0..).take_while(|at| *text.add(*at) != 0).count();
        std::slice::from_raw_parts(text, length)
    };
    String::from_utf16_lossy(units)
}

fn text(guid: &GUID) -> String {
    let GUID { data1, data2, data3, data4: d } = guid;
    let end: String = d[2..].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{data1:08x}-{data2:04x}-{data3:04x}-{:02x}{:02x}-{end}", d[0], d[1])
}

unsafe fn enumerate(
    name: &str,
    kind: &str,
    query: PCWSTR,
    out: *mut PWSTR,
    record: *mut PWSTR,
) -> HRESULT {
    // SAFETY: the caller guarantees it.
    unsafe {
        let query = read_wide_string(query);
        let done = call(name, "", |service| service.enumerate(kind, &query));
        finish(done.map(|ids| give(out, &ids)), record)
    }
}

unsafe fn open(
    name: &str,
    kind: &str,
    id: *const GUID,
    handle: *mut *mut c_void,
    record: *mut PWSTR,
) -> HRESULT {
    // SAFETY: the caller guarantees it.
    let id = text(unsafe { &*id });
    let done = call(name, &id, |service| service.query(kind, &id).map(drop));
    let done = done.map(|()| {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        HANDLES.lock().unwrap_or_else(PoisonError::into_inner).insert(number, id);
        // SAFETY: the caller guarantees it.
        unsafe { *handle = ptr::without_provenance_mut(number) };
    });
    // SAFETY: the caller guarantees it.
    unsafe { finish(done, record) }
}

fn opened(handle: *const c_void) -> String {
    let handles = HANDLES.lock().unwrap_or_else(PoisonError::into_inner);
    handles.get(&handle.addr()).cloned().unwrap_or_default()
}

unsafe fn query(
    name: &str,
    kind: &str,
    handle: *const c_void,
    out: *mut PWSTR,
    record: *mut PWSTR,
) -> HRESULT {
    let id = opened(handle);
    let done = call(name, &id, |service| service.query(kind, &id));
    // SAFETY: the caller guarantees it.
    unsafe { finish(done.map(|document| give(out, &document)), record) }
}

fn close(name: &str, handle: *const c_void) -> HRESULT {
    let mut handles = HANDLES.lock().unwrap_or_else(PoisonError::into_inner);
    match handles.remove(&handle.addr()) {
        Some(_) => 0,
        None => {
            drop(handles);
            // The caller closes a handle that is not open: record it for the tests.
            _ = store().with(|service| {
                service.list("calls").push(json!({"call": name, "id": "", "error": "not open"}))
            });
            0x8007_0006_u32.cast_signed()
        }
    }
}

/// See Windows' documentation.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HcnEnumerateEndpoints(
    query: PCWSTR,
    out: *mut PWSTR,
    record: *mut PWSTR,
) -> HRESULT {
    // SAFETY: the caller guarantees it.
    unsafe { enumerate("HcnEnumerateEndpoints", "endpoints", query, out, record) }
}

/// See Windows' documentation.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HcnEnumerateNetworks(
    query: PCWSTR,
    out: *mut PWSTR,
    record: *mut PWSTR,
) -> HRESULT {
    // SAFETY: the caller guarantees it.
    unsafe { enumerate("HcnEnumerateNetworks", "networks", query, out, record) }
}

/// See Windows' documentation.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HcnOpenEndpoint(
    id: *const GUID,
    handle: *mut *mut c_void,
    record: *mut PWSTR,
) -> HRESULT {
    // SAFETY: the caller guarantees it.
    unsafe { open("HcnOpenEndpoint", "endpoints", id, handle, record) }
}

/// See Windows' documentation.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HcnOpenNetwork(
    id: *const GUID,
    handle: *mut *mut c_void,
    record: *mut PWSTR,
) -> HRESULT {
    // SAFETY: the caller guarantees it.
    unsafe { open("HcnOpenNetwork", "networks", id, handle, record) }
}

/// See Windows' documentation.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HcnQueryEndpointProperties(
    handle: *const c_void,
    _: PCWSTR,
    out: *mut PWSTR,
    record: *mut PWSTR,
) -> HRESULT {
    // SAFETY: the caller guarantees it.
    unsafe { query("HcnQueryEndpointProperties", "endpoints", handle, out, record) }
}

/// See Windows' documentation.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HcnQueryNetworkProperties(
    handle: *const c_void,
    _: PCWSTR,
    out: *mut PWSTR,
    record: *mut PWSTR,
) -> HRESULT {
    // SAFETY: the caller guarantees it.
    unsafe { query("HcnQueryNetworkProperties", "networks", handle, out, record) }
}

/// See Windows' documentation.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HcnModifyEndpoint(
    handle: *const c_void,
    settings: PCWSTR,
    record: *mut PWSTR,
) -> HRESULT {
    let id = opened(handle);
    // SAFETY: the caller guarantees it.
    unsafe {
        let settings = read_wide_string(settings);
        let done = call("HcnModifyEndpoint", &id, |service| service.modify(&id, &settings));
        finish(done, record)
    }
}

/// See Windows' documentation.
#[unsafe(no_mangle)]
pub extern "system" fn HcnCloseEndpoint(handle: *const c_void) -> HRESULT {
    close("HcnCloseEndpoint", handle)
}

/// See Windows' documentation.
#[unsafe(no_mangle)]
pub extern "system" fn HcnCloseNetwork(handle: *const c_void) -> HRESULT {
    close("HcnCloseNetwork", handle)
}

/// See Windows' documentation. Notifies about new endpoints from a separate thread.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HcnRegisterServiceCallback(
    callback: HCN_NOTIFICATION_CALLBACK,
    context: *const c_void,
    handle: *mut *mut c_void,
) -> HRESULT {
    let context = context.expose_provenance();
    let ids = || store().with(|service| service.enumerate("endpoints", "")).ok();
    thread::spawn(move || {
        let mut known = ids();
        loop {
            thread::sleep(POLL_INTERVAL);
            let now = ids();
            if now != known
                && let Some(callback) = callback
            {
                let kind = HcnNotificationNetworkEndpointAttached.cast_unsigned();
                let nothing = [0_u16];
                // SAFETY: the caller keeps the context until the process ends.
                unsafe {
                    callback(kind, ptr::with_exposed_provenance(context), 0, nothing.as_ptr())
                };
            }
            known = now;
        }
    });
    // SAFETY: the caller guarantees it.
    unsafe { *handle = ptr::without_provenance_mut(1) };
    0
}

/// See Windows' documentation of the older interface. weir only reads the version.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HNSCall(_: PCWSTR, _: PCWSTR, _: PCWSTR, out: *mut PWSTR) -> HRESULT {
    let done = call("HNSCall", "", |service| Ok(service.version()));
    // SAFETY: the caller guarantees it.
    unsafe { finish(done.map(|version| give(out, &version)), ptr::null_mut()) }
}
