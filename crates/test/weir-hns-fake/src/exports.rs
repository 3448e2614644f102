//! The functions of `computenetwork.dll` and `vmcompute.dll` that weir calls.

#![allow(unsafe_code, reason = "it is a DLL with the functions of another one")]
#![allow(non_snake_case, reason = "they have the names that Windows gives them")]
#![allow(unreachable_pub, reason = "they are found by their names")]
#![allow(clippy::missing_safety_doc, reason = "they are called as Windows documents it")]

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

use crate::{Fault, Service, Store};

/// Where the state is.
const STATE: &str = "WEIR_HNS_DOUBLE";
/// How often to look for new endpoints.
const LOOK: Duration = Duration::from_millis(200);

static HANDLES: Mutex<BTreeMap<usize, String>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicUsize = AtomicUsize::new(1);

fn store() -> Store {
    Store::at(env::var_os(STATE).unwrap_or_else(|| "weir-hns-fake.json".into()))
}

/// One call: noted, and late or failing as it was told.
fn call<T>(
    name: &str,
    id: &str,
    act: impl FnOnce(&mut Service) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let broken = Fault { code: 0x8000_4005, text: "The double cannot reach its file." };
    let begun = store().with(|service| service.begin(name, id));
    let (hang, fault) = begun.map_err(|_| broken.clone())?;
    thread::sleep(hang);
    match fault {
        Some(fault) => Err(fault),
        None => store().with(act).map_err(|_| broken)?,
    }
}

/// The result of a call, and its record.
unsafe fn finish(done: Result<(), Fault>, record: *mut PWSTR) -> HRESULT {
    let Err(Fault { code, text }) = done else { return 0 };
    let said = json!({"Success": false, "Error": text, "ErrorCode": code}).to_string();
    // SAFETY: whoever calls gives a place for the record, or null.
    unsafe { give(record, &said) };
    code.cast_signed()
}

/// A text for the caller, who frees it.
unsafe fn give(to: *mut PWSTR, text: &str) {
    if to.is_null() {
        return;
    }
    let units: Vec<u16> = text.encode_utf16().chain([0]).collect();
    // SAFETY: the memory is as long as the text; `to` is a place of the caller's.
    unsafe {
        let copy = CoTaskMemAlloc(units.len() * 2).cast::<u16>();
        ptr::copy_nonoverlapping(units.as_ptr(), copy, units.len());
        *to = copy;
    }
}

unsafe fn read(text: PCWSTR) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: texts of callers end in zero.
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
    // SAFETY: as the caller promises.
    unsafe {
        let query = read(query);
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
    // SAFETY: as the caller promises.
    let id = text(unsafe { &*id });
    let done = call(name, &id, |service| service.query(kind, &id).map(drop));
    let done = done.map(|()| {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        HANDLES.lock().unwrap_or_else(PoisonError::into_inner).insert(number, id);
        // SAFETY: as the caller promises.
        unsafe { *handle = ptr::without_provenance_mut(number) };
    });
    // SAFETY: as the caller promises.
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
    // SAFETY: as the caller promises.
    unsafe { finish(done.map(|document| give(out, &document)), record) }
}

fn close(name: &str, handle: *const c_void) -> HRESULT {
    let mut handles = HANDLES.lock().unwrap_or_else(PoisonError::into_inner);
    match handles.remove(&handle.addr()) {
        Some(_) => 0,
        None => {
            drop(handles);
            // Somebody closes what is not open: tests look for that.
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
    // SAFETY: as the caller promises.
    unsafe { enumerate("HcnEnumerateEndpoints", "endpoints", query, out, record) }
}

/// See Windows' documentation.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HcnEnumerateNetworks(
    query: PCWSTR,
    out: *mut PWSTR,
    record: *mut PWSTR,
) -> HRESULT {
    // SAFETY: as the caller promises.
    unsafe { enumerate("HcnEnumerateNetworks", "networks", query, out, record) }
}

/// See Windows' documentation.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HcnOpenEndpoint(
    id: *const GUID,
    handle: *mut *mut c_void,
    record: *mut PWSTR,
) -> HRESULT {
    // SAFETY: as the caller promises.
    unsafe { open("HcnOpenEndpoint", "endpoints", id, handle, record) }
}

/// See Windows' documentation.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HcnOpenNetwork(
    id: *const GUID,
    handle: *mut *mut c_void,
    record: *mut PWSTR,
) -> HRESULT {
    // SAFETY: as the caller promises.
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
    // SAFETY: as the caller promises.
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
    // SAFETY: as the caller promises.
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
    // SAFETY: as the caller promises.
    unsafe {
        let settings = read(settings);
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

/// See Windows' documentation. Tells of new endpoints, from a thread of its own.
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
            thread::sleep(LOOK);
            let now = ids();
            if now != known
                && let Some(callback) = callback
            {
                let kind = HcnNotificationNetworkEndpointAttached.cast_unsigned();
                let nothing = [0_u16];
                // SAFETY: whoever registered it keeps the context for as long as the process lives.
                unsafe {
                    callback(kind, ptr::with_exposed_provenance(context), 0, nothing.as_ptr())
                };
            }
            known = now;
        }
    });
    // SAFETY: as the caller promises.
    unsafe { *handle = ptr::without_provenance_mut(1) };
    0
}

/// See Windows' documentation of its older interface: only the version is asked for.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HNSCall(_: PCWSTR, _: PCWSTR, _: PCWSTR, out: *mut PWSTR) -> HRESULT {
    let done = call("HNSCall", "", |service| Ok(service.version()));
    // SAFETY: as the caller promises.
    unsafe { finish(done.map(|version| give(out, &version)), ptr::null_mut()) }
}
