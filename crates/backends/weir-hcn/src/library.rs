//! Bindings to `computenetwork.dll`, with all unsafe code of this crate.
//!
//! Strings that HNS returns belong to the caller, who frees them with `CoTaskMemFree`. Every opened
//! handle is closed. A call succeeded if its result is zero and there is no error record.

#![allow(unsafe_code, reason = "HNS is reached through functions of a DLL")]

use std::{
    ffi::c_void,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use serde_json::Value;
use windows_sys::{
    Win32::{
        Foundation::GetLastError,
        System::{
            Com::CoTaskMemFree,
            HostComputeNetwork::HCN_NOTIFICATION_CALLBACK,
            LibraryLoader::{GetProcAddress, LOAD_LIBRARY_SEARCH_SYSTEM32, LoadLibraryExW},
        },
    },
    core::{GUID, HRESULT, PCWSTR, PWSTR},
};

use crate::{ErrorClass, HnsEndpoint, HnsNetwork, Host, HostError, Inventory};

type Enumerate = unsafe extern "system" fn(PCWSTR, *mut PWSTR, *mut PWSTR) -> HRESULT;
type Open = unsafe extern "system" fn(*const GUID, *mut *mut c_void, *mut PWSTR) -> HRESULT;
type Query = unsafe extern "system" fn(*const c_void, PCWSTR, *mut PWSTR, *mut PWSTR) -> HRESULT;
type Modify = unsafe extern "system" fn(*const c_void, PCWSTR, *mut PWSTR) -> HRESULT;
type Close = unsafe extern "system" fn(*const c_void) -> HRESULT;
type Register = unsafe extern "system" fn(
    HCN_NOTIFICATION_CALLBACK,
    *const c_void,
    *mut *mut c_void,
) -> HRESULT;
type HnsCall = unsafe extern "system" fn(PCWSTR, PCWSTR, PCWSTR, *mut PWSTR) -> HRESULT;

/// The query that every call sends.
const QUERY: &str = r#"{"SchemaVersion":{"Major":2,"Minor":0},"Flags":0,"Filter":""}"#;
/// The oldest HNS version with this interface.
const OLDEST_VERSION: (u64, u64) = (9, 2);

/// The HNS of this machine.
#[derive(Debug)]
pub struct Library {
    endpoints: Functions,
    networks: Functions,
    modify: Modify,
}

/// The functions that endpoints and networks have in common.
#[derive(Clone, Copy, Debug)]
struct Functions {
    names: [&'static str; 3],
    enumerate: Enumerate,
    open: Open,
    query: Query,
    close: Close,
}

impl Library {
    /// Loads the DLL, checks the version of HNS, and registers for notifications, which set `hint`.
    pub fn open(hint: &Arc<AtomicBool>) -> Result<Self, HostError> {
        let dll = Dll::load("computenetwork.dll")?;
        // SAFETY: these are the types of these functions in the Windows headers.
        let library = unsafe {
            Library {
                endpoints: Functions {
                    names: [
                        "HcnEnumerateEndpoints",
                        "HcnOpenEndpoint",
                        "HcnQueryEndpointProperties",
                    ],
                    enumerate: std::mem::transmute::<*const c_void, Enumerate>(
                        dll.find("HcnEnumerateEndpoints")?,
                    ),
                    open: std::mem::transmute::<*const c_void, Open>(dll.find("HcnOpenEndpoint")?),
                    query: std::mem::transmute::<*const c_void, Query>(
                        dll.find("HcnQueryEndpointProperties")?,
                    ),
                    close: std::mem::transmute::<*const c_void, Close>(
                        dll.find("HcnCloseEndpoint")?,
                    ),
                },
                networks: Functions {
                    names: ["HcnEnumerateNetworks", "HcnOpenNetwork", "HcnQueryNetworkProperties"],
                    enumerate: std::mem::transmute::<*const c_void, Enumerate>(
                        dll.find("HcnEnumerateNetworks")?,
                    ),
                    open: std::mem::transmute::<*const c_void, Open>(dll.find("HcnOpenNetwork")?),
                    query: std::mem::transmute::<*const c_void, Query>(
                        dll.find("HcnQueryNetworkProperties")?,
                    ),
                    close: std::mem::transmute::<*const c_void, Close>(
                        dll.find("HcnCloseNetwork")?,
                    ),
                },
                modify: std::mem::transmute::<*const c_void, Modify>(
                    dll.find("HcnModifyEndpoint")?,
                ),
            }
        };
        check_version()?;
        // Without notifications, the periodic check finds changes.
        if let Ok(register) = dll.find("HcnRegisterServiceCallback") {
            let mut handle = ptr::null_mut();
            // The callback can run until the process ends, so its context is never freed.
            let context = Arc::into_raw(hint.clone());
            // SAFETY: the type matches the function; the context is never freed; the handle is
            // valid for writing.
            unsafe {
                let register = std::mem::transmute::<*const c_void, Register>(register);
                register(Some(notified), context.cast(), &mut handle);
            }
        }
        Ok(library)
    }
}

/// Called by HNS on its thread when something happened.
unsafe extern "system" fn notified(_: u32, context: *const c_void, _: HRESULT, _: PCWSTR) {
    // SAFETY: the context is the flag passed at registration, which is never freed.
    let hint = unsafe { &*context.cast::<AtomicBool>() };
    hint.store(true, Ordering::Release);
}

impl Host for Library {
    fn inventory(&mut self) -> Result<Inventory, HostError> {
        let mut inventory = Inventory::default();
        for document in self.networks.all()? {
            // Skip documents that cannot be parsed.
            inventory.networks.extend(HnsNetwork::parse(&document));
        }
        for document in self.endpoints.all()? {
            inventory.endpoints.extend(HnsEndpoint::parse(&document));
        }
        // Without the machine's addresses, the ACLs would block probes of the kubelet. Fail
        // instead.
        let unknown = |error: std::io::Error| HostError {
            call: "GetAdaptersAddresses",
            code: HostError::INVALID_RESPONSE,
            record: error.to_string(),
        };
        let interfaces = if_addrs::get_if_addrs().map_err(unknown)?.into_iter();
        let own = interfaces.filter(|interface| !interface.is_loopback());
        inventory.addresses = own.map(|interface| interface.ip()).collect();
        Ok(inventory)
    }

    fn endpoint(&mut self, id: &str) -> Result<HnsEndpoint, HostError> {
        let document = self.endpoints.document(id)?;
        HnsEndpoint::parse(&document)
            .map_err(|error| HostError::invalid_response("HcnQueryEndpointProperties", &error))
    }

    fn modify(&mut self, id: &str, request: &str) -> Result<(), HostError> {
        let handle = self.endpoints.open(id)?;
        let request = wide(request);
        let mut record = Text::default();
        // SAFETY: the handle is open, the string is null-terminated, and the record is valid for
        // writing.
        let result = unsafe { (self.modify)(handle.handle, request.as_ptr(), &mut record.0) };
        check_result("HcnModifyEndpoint", result, &record)
    }
}

impl Functions {
    /// The documents of all objects. Skips objects that disappear during the listing.
    fn all(&self) -> Result<Vec<String>, HostError> {
        let query = wide(QUERY);
        let (mut ids, mut record) = (Text::default(), Text::default());
        // SAFETY: the string is null-terminated, and both outputs are valid for writing.
        let result = unsafe { (self.enumerate)(query.as_ptr(), &mut ids.0, &mut record.0) };
        check_result(self.names[0], result, &record)?;
        let ids: Vec<String> = match &*ids.to_text() {
            "" | "null" => Vec::new(),
            text => serde_json::from_str(text)
                .map_err(|error| HostError::invalid_response(self.names[0], &error))?,
        };
        let mut documents = Vec::with_capacity(ids.len());
        for id in ids {
            match self.document(&id) {
                Ok(document) => documents.push(document),
                Err(error) if error.class() == ErrorClass::Unavailable => return Err(error),
                Err(_) => (),
            }
        }
        Ok(documents)
    }

    fn document(&self, id: &str) -> Result<String, HostError> {
        let handle = self.open(id)?;
        let query = wide(QUERY);
        let (mut document, mut record) = (Text::default(), Text::default());
        // SAFETY: the handle is open, the string is null-terminated, and both outputs are valid for
        // writing.
        let result =
            unsafe { (self.query)(handle.handle, query.as_ptr(), &mut document.0, &mut record.0) };
        check_result(self.names[2], result, &record)?;
        Ok(document.to_text())
    }

    fn open(&self, id: &str) -> Result<Opened, HostError> {
        let name = self.names[1];
        let bad = || HostError { call: name, code: 0x8007_0057, record: format!("bad id {id}") };
        let guid = guid(id).ok_or_else(bad)?;
        let mut handle = ptr::null_mut();
        let mut record = Text::default();
        // SAFETY: the id is valid for reading; the handle and the record are valid for writing.
        let result = unsafe { (self.open)(&guid, &mut handle, &mut record.0) };
        let opened = Opened { handle, close: self.close };
        check_result(name, result, &record)?;
        Ok(opened)
    }
}

/// An open handle. Closed on drop.
struct Opened {
    handle: *mut c_void,
    close: Close,
}

impl Drop for Opened {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: the handle is open, and is closed once.
            unsafe { (self.close)(self.handle) };
        }
    }
}

/// A string from HNS, or null.
struct Text(PWSTR);

impl Default for Text {
    fn default() -> Self {
        Text(ptr::null_mut())
    }
}

impl Text {
    fn to_text(&self) -> String {
        if self.0.is_null() {
            return String::new();
        }
        // SAFETY: strings from HNS are null-terminated, and this one is ours until it is dropped.
        let units = unsafe {
            let length = (0..).take_while(|at| *self.0.add(*at) != 0).count();
            std::slice::from_raw_parts(self.0, length)
        };
        String::from_utf16_lossy(units)
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        // SAFETY: HNS allocated it for us, or it is null, which is allowed.
        unsafe { CoTaskMemFree(self.0.cast()) };
    }
}

/// A system DLL. It is never unloaded.
struct Dll {
    name: &'static str,
    handle: *mut c_void,
}

impl Dll {
    fn load(name: &'static str) -> Result<Self, HostError> {
        let file = wide(name);
        // SAFETY: the name is null-terminated. Only the system folder is searched.
        let handle =
            unsafe { LoadLibraryExW(file.as_ptr(), ptr::null_mut(), LOAD_LIBRARY_SEARCH_SYSTEM32) };
        if handle.is_null() {
            let record = format!("{name}: is the Containers feature of Windows installed?");
            return Err(missing("LoadLibraryExW", &record));
        }
        Ok(Dll { name, handle })
    }

    fn find(&self, function: &str) -> Result<*const c_void, HostError> {
        let name = format!("{function}\0");
        // SAFETY: the DLL is loaded, and the name is null-terminated.
        let found = unsafe { GetProcAddress(self.handle, name.as_ptr()) };
        match found {
            Some(found) => Ok(found as *const c_void),
            None => Err(missing("GetProcAddress", &format!("{} has no {function}", self.name))),
        }
    }
}

/// Checks the version through the older interface. A version without numbers counts as new enough,
/// because old ones report them.
fn check_version() -> Result<(), HostError> {
    let dll = Dll::load("vmcompute.dll")?;
    let call = dll.find("HNSCall")?;
    let [method, path, body] = ["GET", "/globals/version", ""].map(wide);
    let mut answer = Text::default();
    // SAFETY: the type matches the function; the strings are null-terminated, and the response is
    // valid for writing.
    let result = unsafe {
        let call = std::mem::transmute::<*const c_void, HnsCall>(call);
        call(method.as_ptr(), path.as_ptr(), body.as_ptr(), &mut answer.0)
    };
    check_result("HNSCall", result, &Text::default())?;
    let answer: Value = serde_json::from_str(&answer.to_text()).unwrap_or_default();
    let part = |name: &str| answer["Output"][name].as_u64();
    match (part("Major"), part("Minor")) {
        (Some(major), Some(minor)) if (major, minor) < OLDEST_VERSION => Err(HostError {
            call: "HNSCall",
            code: 0x8007_0032,
            record: format!(
                "HNS has version {major}.{minor}, but weir needs {}.{} or later (Windows Server 2019)",
                OLDEST_VERSION.0, OLDEST_VERSION.1
            ),
        }),
        _ => Ok(()),
    }
}

/// Converts the result of a call. It succeeded if the result is zero and there is no error record.
fn check_result(call: &'static str, result: HRESULT, record: &Text) -> Result<(), HostError> {
    let text = record.to_text();
    if result == 0 && text.is_empty() {
        return Ok(());
    }
    let parsed: Value = serde_json::from_str(&text).unwrap_or_default();
    let recorded = parsed["ErrorCode"].as_u64().and_then(|code| u32::try_from(code).ok());
    let code = if result == 0 { recorded.unwrap_or(0) } else { result.cast_unsigned() };
    let record = parsed["Error"].as_str().map_or(text, |error| error.trim().to_owned());
    Err(HostError { call, code, record })
}

fn missing(call: &'static str, record: &str) -> HostError {
    // SAFETY: it only reads the last error of this thread.
    let error = unsafe { GetLastError() };
    HostError { call, code: 0x8007_0000 | (error & 0xFFFF), record: record.to_owned() }
}

fn wide(text: &str) -> Vec<u16> {
    text.encode_utf16().chain([0]).collect()
}

fn guid(text: &str) -> Option<GUID> {
    let digits: String = text.chars().filter(|c| !matches!(c, '-' | '{' | '}')).collect();
    let whole = (digits.len() == 32).then(|| u128::from_str_radix(&digits, 16).ok())??;
    Some(GUID::from_u128(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_parsed_in_every_spelling() {
        let guid = guid("{0F1E2D3C-4b5a-6978-8796-A5B4C3D2E1F0}").unwrap();
        assert_eq!((guid.data1, guid.data2, guid.data4[7]), (0x0F1E_2D3C, 0x4b5a, 0xF0));
        assert!(super::guid("no").is_none() && super::guid("").is_none());
    }

    #[test]
    fn an_error_record_is_a_failure_whatever_the_result_is() {
        let units =
            wide(r#"{"Success":false,"Error":"Element not found. ","ErrorCode":2151350274}"#);
        // SAFETY: the copy has the length of the text, and `Text` frees it.
        let record = unsafe {
            let copy =
                windows_sys::Win32::System::Com::CoTaskMemAlloc(units.len() * 2).cast::<u16>();
            ptr::copy_nonoverlapping(units.as_ptr(), copy, units.len());
            Text(copy)
        };
        let error = check_result("HcnOpenEndpoint", 0, &record).unwrap_err();
        assert_eq!((error.code, &*error.record), (0x803B_0002, "Element not found."));
        assert_eq!(error.class(), ErrorClass::Gone);
        assert!(check_result("x", 0, &Text::default()).is_ok());
        assert_eq!(check_result("x", -1, &Text::default()).unwrap_err().code, u32::MAX);
    }
}
