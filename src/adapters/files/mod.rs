//! Files of a call: found below the allowed folders, read from their descriptors, sent to where the configuration says.
//!
//! Promises: nothing outside of the folders is opened, whatever a path says; a file that is not what it was when the call was
//! prepared never arrives whole; nothing secret is in an error.
//!
//! Does not know which arguments are files, nor who may send any: that is the pipeline's.

mod http;
mod reading;
mod roots;

pub use http::HttpUploads;
pub use roots::Roots;
