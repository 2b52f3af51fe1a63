//! What a report says of the program: the lines of both sides, the vector's type and size, the seed.

mod calls;
mod fixture;
mod sides;

use crate::pool_checks::fixture::alias;
use crate::{kernels, support};
