//! Instructions of the eBPF virtual machine, as far as weir uses them.

mod kernel_names;

use std::fmt;

pub use kernel_names::{Field, Helper, Kfunc};

/// A register. `R10` is the frame pointer; `R1` to `R5` do not survive a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the numbers are the names")]
pub enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// The width of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 1 byte.
    Byte,
    /// 2 bytes.
    Half,
    /// 4 bytes.
    Word,
    /// 8 bytes.
    Double,
}

/// The second operand of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// The value of a register.
    Register(Register),
    /// A constant, which is sign-extended.
    Constant(i32),
}

/// A 64-bit operation on a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the operators")]
pub enum Operator {
    Move,
    Add,
    Subtract,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
}

/// A comparison of unsigned 64-bit numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the operators")]
pub enum Comparison {
    Equal,
    NotEqual,
    Greater,
    GreaterOrEqual,
    Less,
    /// Whether the operands have a bit in common.
    Shares,
}

/// The length of a value in memory, for the constants of `struct bpf_insn`.
impl Width {
    fn code(self) -> u8 {
        match self {
            Width::Word => 0x00,
            Width::Half => 0x08,
            Width::Byte => 0x10,
            Width::Double => 0x18,
        }
    }

    /// The number of bytes.
    pub fn bytes(self) -> usize {
        match self {
            Width::Byte => 1,
            Width::Half => 2,
            Width::Word => 4,
            Width::Double => 8,
        }
    }
}

/// One instruction. A jump is relative to the next slot of the encoded program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction<M> {
    /// `register = register operator operand`
    Compute(Operator, Register, Operand),
    /// Converts the lower 16 bits between network and host order, and clears the others.
    SwapHalf(Register),
    /// `register = *(base + offset)`
    Load(Width, Register, Register, i16),
    /// `register = *(base + the offset of the field)`
    LoadField(Width, Register, Register, Field),
    /// `*(base + offset) = register`
    Store(Width, Register, i16, Register),
    /// `*(base + offset) = constant`
    StoreConstant(Width, Register, i16, i32),
    /// `register = the map`
    Map(Register, M),
    /// `register = the address of the only value of the map`
    MapValue(Register, M),
    /// `register = the BTF id of the structure of the field`
    StructId(Register, Field),
    /// Continues elsewhere.
    Jump(i16),
    /// Continues elsewhere if the comparison holds.
    JumpIf(Comparison, Register, Operand, i16),
    /// Calls a helper.
    Call(Helper),
    /// Calls a kernel function.
    CallKfunc(Kfunc),
    /// Calls a function of the program.
    CallLocal(i32),
    /// Returns `R0`.
    Exit,
}

/// Numbers that only a running kernel has.
pub trait Resolve<M> {
    /// The file descriptor of a map.
    fn map(&self, map: M) -> i32;
    /// The BTF id of a function.
    fn kfunc(&self, kfunc: Kfunc) -> i32;
    /// The offset of a field.
    fn offset(&self, field: Field) -> i16;
    /// The BTF id of the structure of a field.
    fn struct_id(&self, field: Field) -> i32;
}

impl<M: Copy> Instruction<M> {
    /// The number of slots that the encoded instruction takes.
    pub fn slots(&self) -> usize {
        match self {
            Instruction::Map(..) | Instruction::MapValue(..) => 2,
            _ => 1,
        }
    }

    /// The instruction as `struct bpf_insn`.
    pub fn encode(&self, resolve: &impl Resolve<M>) -> Vec<u64> {
        use Instruction as I;
        let with = |code: u8, operand: Operand| match operand {
            Operand::Register(source) => (code | 0x08, source as u8, 0),
            Operand::Constant(constant) => (code, 0, constant),
        };
        let one = |code: u8, to: Register, from: u8, offset: i16, constant: i32| {
            let registers = to as u8 | from << 4;
            let [low, high] = offset.to_le_bytes();
            let [a, b, c, d] = constant.to_le_bytes();
            vec![u64::from_le_bytes([code, registers, low, high, a, b, c, d])]
        };
        match *self {
            I::Compute(operator, to, operand) => {
                let (code, from, constant) = with(operator.code(), operand);
                one(code, to, from, 0, constant)
            }
            I::SwapHalf(register) => one(0xdc, register, 0, 0, 16),
            I::Load(width, to, base, offset) => one(0x61 | width.code(), to, base as u8, offset, 0),
            I::LoadField(width, to, base, field) => {
                one(0x61 | width.code(), to, base as u8, resolve.offset(field), 0)
            }
            I::Store(width, base, offset, from) => {
                one(0x63 | width.code(), base, from as u8, offset, 0)
            }
            I::StoreConstant(width, base, offset, constant) => {
                one(0x62 | width.code(), base, 0, offset, constant)
            }
            I::Map(to, map) => {
                let mut slots = one(0x18, to, 1, 0, resolve.map(map));
                slots.push(0);
                slots
            }
            I::MapValue(to, map) => {
                let mut slots = one(0x18, to, 2, 0, resolve.map(map));
                slots.push(0);
                slots
            }
            I::StructId(to, field) => one(0xb7, to, 0, 0, resolve.struct_id(field)),
            I::Jump(offset) => one(0x05, Register::R0, 0, offset, 0),
            I::JumpIf(comparison, left, operand, offset) => {
                let (code, from, constant) = with(comparison.code(), operand);
                one(code, left, from, offset, constant)
            }
            I::Call(helper) => one(0x85, Register::R0, 0, 0, helper as i32),
            I::CallKfunc(kfunc) => one(0x85, Register::R0, 2, 0, resolve.kfunc(kfunc)),
            I::CallLocal(offset) => one(0x85, Register::R0, 1, 0, offset),
            I::Exit => one(0x95, Register::R0, 0, 0, 0),
        }
    }
}

impl Operator {
    fn code(self) -> u8 {
        match self {
            Operator::Add => 0x07,
            Operator::Subtract => 0x17,
            Operator::Or => 0x47,
            Operator::And => 0x57,
            Operator::ShiftLeft => 0x67,
            Operator::ShiftRight => 0x77,
            Operator::Xor => 0xa7,
            Operator::Move => 0xb7,
        }
    }

    fn symbol(self) -> &'static str {
        match self {
            Operator::Move => "=",
            Operator::Add => "+=",
            Operator::Subtract => "-=",
            Operator::And => "&=",
            Operator::Or => "|=",
            Operator::Xor => "^=",
            Operator::ShiftLeft => "<<=",
            Operator::ShiftRight => ">>=",
        }
    }
}

impl Comparison {
    fn code(self) -> u8 {
        match self {
            Comparison::Equal => 0x15,
            Comparison::Greater => 0x25,
            Comparison::GreaterOrEqual => 0x35,
            Comparison::Shares => 0x45,
            Comparison::NotEqual => 0x55,
            Comparison::Less => 0xa5,
        }
    }

    fn symbol(self) -> &'static str {
        match self {
            Comparison::Equal => "==",
            Comparison::NotEqual => "!=",
            Comparison::Greater => ">",
            Comparison::GreaterOrEqual => ">=",
            Comparison::Less => "<",
            Comparison::Shares => "&",
        }
    }
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", *self as u8)
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Register(register) => register.fmt(f),
            Operand::Constant(constant) => constant.fmt(f),
        }
    }
}

impl<M: fmt::Display> fmt::Display for Instruction<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Instruction as I;
        let bits = |width: &Width| 8 * width.bytes();
        match self {
            I::Compute(operator, to, operand) => write!(f, "{to} {} {operand}", operator.symbol()),
            I::SwapHalf(register) => write!(f, "{register} = be16({register})"),
            I::Load(width, to, base, offset) => {
                write!(f, "{to} = u{}[{base} {offset:+}]", bits(width))
            }
            I::LoadField(width, to, base, field) => {
                write!(f, "{to} = u{}[{base} + {field}]", bits(width))
            }
            I::Store(width, base, offset, from) => {
                write!(f, "u{}[{base} {offset:+}] = {from}", bits(width))
            }
            I::StoreConstant(width, base, offset, constant) => {
                write!(f, "u{}[{base} {offset:+}] = {constant}", bits(width))
            }
            I::Map(to, map) => write!(f, "{to} = map {map}"),
            I::MapValue(to, map) => write!(f, "{to} = value of {map}"),
            I::StructId(to, field) => write!(f, "{to} = id of {}", field.path().0),
            I::Jump(offset) => write!(f, "jump {offset:+}"),
            I::JumpIf(comparison, left, operand, offset) => {
                write!(f, "if {left} {} {operand} jump {offset:+}", comparison.symbol())
            }
            I::Call(helper) => write!(f, "call {helper:?}"),
            I::CallKfunc(kfunc) => write!(f, "call {}", kfunc.name()),
            I::CallLocal(offset) => write!(f, "call {offset:+}"),
            I::Exit => f.write_str("exit"),
        }
    }
}
