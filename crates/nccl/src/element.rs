//! The elements that collectives reduce.

use aquifer_collective::ElementType;
use bytemuck::Pod;

mod sealed {
    use aquifer_collective::ElementType;

    pub trait Element {
        const TYPE: Type;
    }

    /// The number by which NCCL knows the type.
    #[derive(Clone, Copy, Debug)]
    pub struct Type(pub(crate) ElementType);
}

pub(super) use sealed::Element;
use sealed::Type;

/// An element that reductions work on. These are integers of 8, 32 and 64 bits and floats of
/// 32 and 64. The feature `half` adds the `f16` and `bf16` of that crate. Collectives that
/// only move elements take any plain data.
pub trait ReduceElement: Pod + Element {}

macro_rules! elements {
    ($($type:ty = $element:ident;)+) => {
        $(
            impl Element for $type {
                const TYPE: Type = Type(ElementType::$element);
            }

            impl ReduceElement for $type {}
        )+
    };
}

elements! {
    i8 = I8;
    u8 = U8;
    i32 = I32;
    u32 = U32;
    i64 = I64;
    u64 = U64;
    f32 = F32;
    f64 = F64;
}

#[cfg(feature = "half")]
elements! {
    half::f16 = F16;
    half::bf16 = Bf16;
}
