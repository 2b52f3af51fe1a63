//! Entry points with the signatures that hosts take: one file for each host, and its traps.

mod cupy;
mod cuquantum;
mod torch;
