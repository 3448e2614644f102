//! `computenetwork.dll`, called: the one file with code that the compiler cannot check.
//!
//! Texts that HNS returns belong to the caller and are freed with `CoTaskMemFree`; every handle that was opened is closed; a call has
//! succeeded if its result says so and there is no error record.

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

use crate::{Host, HostError, Inventory, Meaning, Network, document::Endpoint};

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

/// What every query says.
const QUERY: &str = r#"{"SchemaVersion":{"Major":2,"Minor":0},"Flags":0,"Filter":""}"#;
/// The oldest HNS that has this interface.
const OLDEST: (u64, u64) = (9, 2);

/// HNS of this machine.
#[derive(Debug)]
pub struct Library {
    endpoints: Functions,
    networks: Functions,
    modify: Modify,
}

/// What endpoints and networks have in common.
#[derive(Clone, Copy, Debug)]
struct Functions {
    names: [&'static str; 3],
    enumerate: Enumerate,
    open: Open,
    query: Query,
    close: Close,
}

impl Library {
    /// Loads the DLL, makes sure that HNS is not too old, and asks to be told what happens to endpoints: then `hint` is set.
    pub fn open(hint: &Arc<AtomicBool>) -> Result<Self, HostError> {
        let dll = Dll::load("computenetwork.dll")?;
        // SAFETY: these are the types of these functions, as Windows' own headers declare them.
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
        // Without notifications there is the poll.
        if let Ok(register) = dll.find("HcnRegisterServiceCallback") {
            let mut handle = ptr::null_mut();
            // The callback may come at any time until the process ends: what it is given lives as long.
            let context = Arc::into_raw(hint.clone());
            // SAFETY: the type is that of the function; the context is never freed; the handle is valid for writing.
            unsafe {
                let register = std::mem::transmute::<*const c_void, Register>(register);
                register(Some(notified), context.cast(), &mut handle);
            }
        }
        Ok(library)
    }
}

/// HNS says that something has happened, on a thread of its own.
unsafe extern "system" fn notified(_: u32, context: *const c_void, _: HRESULT, _: PCWSTR) {
    // SAFETY: the context is the flag that was given when this was registered, and it is never freed.
    let hint = unsafe { &*context.cast::<AtomicBool>() };
    hint.store(true, Ordering::Release);
}

impl Host for Library {
    fn inventory(&mut self) -> Result<Inventory, HostError> {
        let mut inventory = Inventory::default();
        for document in self.networks.all()? {
            // What cannot be understood is not there.
            inventory.networks.extend(Network::read(&document));
        }
        for document in self.endpoints.all()? {
            inventory.endpoints.extend(Endpoint::read(&document));
        }
        // Without them probes of the kubelet would be blocked: better nothing is changed.
        let unknown = |error: std::io::Error| HostError {
            call: "GetAdaptersAddresses",
            code: HostError::SENSELESS,
            record: error.to_string(),
        };
        let interfaces = if_addrs::get_if_addrs().map_err(unknown)?.into_iter();
        let own = interfaces.filter(|interface| !interface.is_loopback());
        inventory.addresses = own.map(|interface| interface.ip()).collect();
        Ok(inventory)
    }

    fn endpoint(&mut self, id: &str) -> Result<Endpoint, HostError> {
        let document = self.endpoints.document(id)?;
        Endpoint::read(&document)
            .map_err(|error| HostError::senseless("HcnQueryEndpointProperties", &error))
    }

    fn modify(&mut self, id: &str, request: &str) -> Result<(), HostError> {
        let handle = self.endpoints.open(id)?;
        let request = wide(request);
        let mut record = Text::default();
        // SAFETY: the handle is open, the text ends in zero, and the record is valid for writing.
        let result = unsafe { (self.modify)(handle.handle, request.as_ptr(), &mut record.0) };
        done("HcnModifyEndpoint", result, &record)
    }
}

impl Functions {
    /// The documents of all there are. Who vanishes meanwhile is not there.
    fn all(&self) -> Result<Vec<String>, HostError> {
        let query = wide(QUERY);
        let (mut ids, mut record) = (Text::default(), Text::default());
        // SAFETY: the text ends in zero, and both texts are valid for writing.
        let result = unsafe { (self.enumerate)(query.as_ptr(), &mut ids.0, &mut record.0) };
        done(self.names[0], result, &record)?;
        let ids: Vec<String> = match &*ids.read() {
            "" | "null" => Vec::new(),
            text => serde_json::from_str(text)
                .map_err(|error| HostError::senseless(self.names[0], &error))?,
        };
        let mut documents = Vec::with_capacity(ids.len());
        for id in ids {
            match self.document(&id) {
                Ok(document) => documents.push(document),
                Err(error) if error.meaning() == Meaning::Away => return Err(error),
                Err(_) => (),
            }
        }
        Ok(documents)
    }

    fn document(&self, id: &str) -> Result<String, HostError> {
        let handle = self.open(id)?;
        let query = wide(QUERY);
        let (mut document, mut record) = (Text::default(), Text::default());
        // SAFETY: the handle is open, the text ends in zero, and both texts are valid for writing.
        let result =
            unsafe { (self.query)(handle.handle, query.as_ptr(), &mut document.0, &mut record.0) };
        done(self.names[2], result, &record)?;
        Ok(document.read())
    }

    fn open(&self, id: &str) -> Result<Opened, HostError> {
        let name = self.names[1];
        let bad = || HostError { call: name, code: 0x8007_0057, record: format!("bad id {id}") };
        let guid = guid(id).ok_or_else(bad)?;
        let mut handle = ptr::null_mut();
        let mut record = Text::default();
        // SAFETY: the id is valid for reading, the handle and the record for writing.
        let result = unsafe { (self.open)(&guid, &mut handle, &mut record.0) };
        let opened = Opened { handle, close: self.close };
        done(name, result, &record)?;
        Ok(opened)
    }
}

/// Something that is open, until it is dropped.
struct Opened {
    handle: *mut c_void,
    close: Close,
}

impl Drop for Opened {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: it was opened, and is closed once.
            unsafe { (self.close)(self.handle) };
        }
    }
}

/// A text that HNS gave us, or none.
struct Text(PWSTR);

impl Default for Text {
    fn default() -> Self {
        Text(ptr::null_mut())
    }
}

impl Text {
    fn read(&self) -> String {
        if self.0.is_null() {
            return String::new();
        }
        // SAFETY: HNS ends its texts with zero, and this one is ours until it is dropped.
        let units = unsafe {
            let length = (0..).take_while(|at| *self.0.add(*at) != 0).count();
            std::slice::from_raw_parts(self.0, length)
        };
        String::from_utf16_lossy(units)
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        // SAFETY: it was allocated for us by HNS, or is null, which is allowed.
        unsafe { CoTaskMemFree(self.0.cast()) };
    }
}

/// A DLL of the system. It is never unloaded.
struct Dll {
    name: &'static str,
    handle: *mut c_void,
}

impl Dll {
    fn load(name: &'static str) -> Result<Self, HostError> {
        let file = wide(name);
        // SAFETY: the name ends in zero; DLLs of the system folder alone are loaded.
        let handle =
            unsafe { LoadLibraryExW(file.as_ptr(), ptr::null_mut(), LOAD_LIBRARY_SEARCH_SYSTEM32) };
        match handle.is_null() {
            false => Ok(Dll { name, handle }),
            true => Err(missing(
                "LoadLibraryExW",
                &format!("{name}: is the Containers feature of Windows installed?"),
            )),
        }
    }

    fn find(&self, function: &str) -> Result<*const c_void, HostError> {
        let name = format!("{function}\0");
        // SAFETY: the DLL is loaded, and the name ends in zero.
        let found = unsafe { GetProcAddress(self.handle, name.as_ptr()) };
        match found {
            Some(found) => Ok(found as *const c_void),
            None => Err(missing("GetProcAddress", &format!("{} has no {function}", self.name))),
        }
    }
}

/// The version comes from the older interface. Who does not tell is believed to be new enough, for old ones do tell.
fn check_version() -> Result<(), HostError> {
    let dll = Dll::load("vmcompute.dll")?;
    let call = dll.find("HNSCall")?;
    let [method, path, body] = ["GET", "/globals/version", ""].map(wide);
    let mut answer = Text::default();
    // SAFETY: the type is that of the function; the texts end in zero, and the answer is valid for writing.
    let result = unsafe {
        let call = std::mem::transmute::<*const c_void, HnsCall>(call);
        call(method.as_ptr(), path.as_ptr(), body.as_ptr(), &mut answer.0)
    };
    done("HNSCall", result, &Text::default())?;
    let answer: Value = serde_json::from_str(&answer.read()).unwrap_or_default();
    let part = |name: &str| answer["Output"][name].as_u64();
    match (part("Major"), part("Minor")) {
        (Some(major), Some(minor)) if (major, minor) < OLDEST => Err(HostError {
            call: "HNSCall",
            code: 0x8007_0032,
            record: format!(
                "this HNS has version {major}.{minor}, and {}.{} is the oldest that will do: Windows Server 2019 or later is needed",
                OLDEST.0, OLDEST.1
            ),
        }),
        _ => Ok(()),
    }
}

/// A call has succeeded if its result says so and there is no error record.
fn done(call: &'static str, result: HRESULT, record: &Text) -> Result<(), HostError> {
    let text = record.read();
    if result == 0 && text.is_empty() {
        return Ok(());
    }
    let parsed: Value = serde_json::from_str(&text).unwrap_or_default();
    let told = parsed["ErrorCode"].as_u64().and_then(|code| u32::try_from(code).ok());
    let code = if result == 0 { told.unwrap_or(0) } else { result.cast_unsigned() };
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
    fn ids_are_read_in_every_spelling() {
        let guid = guid("{0F1E2D3C-4b5a-6978-8796-A5B4C3D2E1F0}").unwrap();
        assert_eq!((guid.data1, guid.data2, guid.data4[7]), (0x0F1E_2D3C, 0x4b5a, 0xF0));
        assert!(super::guid("no").is_none() && super::guid("").is_none());
    }

    #[test]
    fn a_record_is_a_failure_whatever_the_result_says() {
        let units =
            wide(r#"{"Success":false,"Error":"Element not found. ","ErrorCode":2151350274}"#);
        // SAFETY: it is as long as the text and freed by whoever drops it.
        let record = unsafe {
            let copy =
                windows_sys::Win32::System::Com::CoTaskMemAlloc(units.len() * 2).cast::<u16>();
            ptr::copy_nonoverlapping(units.as_ptr(), copy, units.len());
            Text(copy)
        };
        let error = done("HcnOpenEndpoint", 0, &record).unwrap_err();
        assert_eq!((error.code, &*error.record), (0x803B_0002, "Element not found."));
        assert_eq!(error.meaning(), Meaning::Gone);
        assert!(done("x", 0, &Text::default()).is_ok());
        assert_eq!(done("x", -1, &Text::default()).unwrap_err().code, u32::MAX);
    }
}
