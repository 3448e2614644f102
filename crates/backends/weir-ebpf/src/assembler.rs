//! A small assembler: instructions with labels.

use std::collections::BTreeMap;

use crate::instruction::{
    Comparison, Field, Helper, Instruction, Kfunc, Operand, Operator, Register, Width,
};

impl From<Register> for Operand {
    fn from(register: Register) -> Self {
        Operand::Register(register)
    }
}

impl From<i32> for Operand {
    fn from(constant: i32) -> Self {
        Operand::Constant(constant)
    }
}

/// A place in a program. It is created first and placed once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Label(usize);

/// Collects the instructions of a program.
#[derive(Debug)]
pub(crate) struct Assembler<M> {
    instructions: Vec<Instruction<M>>,
    labels: usize,
    /// The instruction that each placed label is before.
    placed: BTreeMap<Label, usize>,
    /// The instructions that jump to a label.
    jumps: Vec<(usize, Label)>,
}

impl<M: Copy> Assembler<M> {
    pub(crate) fn new() -> Self {
        let (instructions, jumps, placed) = (Vec::new(), Vec::new(), BTreeMap::new());
        Assembler { instructions, labels: 0, placed, jumps }
    }

    pub(crate) fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels)
    }

    /// Places a label before the next instruction.
    pub(crate) fn place(&mut self, label: Label) {
        self.placed.insert(label, self.instructions.len());
    }

    fn push(&mut self, instruction: Instruction<M>) {
        self.instructions.push(instruction);
    }

    pub(crate) fn compute(
        &mut self,
        operator: Operator,
        to: Register,
        operand: impl Into<Operand>,
    ) {
        self.push(Instruction::Compute(operator, to, operand.into()));
    }

    pub(crate) fn set(&mut self, to: Register, operand: impl Into<Operand>) {
        self.compute(Operator::Move, to, operand);
    }

    pub(crate) fn add(&mut self, to: Register, operand: impl Into<Operand>) {
        self.compute(Operator::Add, to, operand);
    }

    pub(crate) fn subtract(&mut self, to: Register, operand: impl Into<Operand>) {
        self.compute(Operator::Subtract, to, operand);
    }

    pub(crate) fn and(&mut self, to: Register, operand: impl Into<Operand>) {
        self.compute(Operator::And, to, operand);
    }

    pub(crate) fn or(&mut self, to: Register, operand: impl Into<Operand>) {
        self.compute(Operator::Or, to, operand);
    }

    pub(crate) fn xor(&mut self, to: Register, operand: impl Into<Operand>) {
        self.compute(Operator::Xor, to, operand);
    }

    pub(crate) fn shift_left(&mut self, to: Register, operand: impl Into<Operand>) {
        self.compute(Operator::ShiftLeft, to, operand);
    }

    pub(crate) fn shift_right(&mut self, to: Register, operand: impl Into<Operand>) {
        self.compute(Operator::ShiftRight, to, operand);
    }

    /// Sets a register to an address on the stack.
    pub(crate) fn stack(&mut self, to: Register, offset: i16) {
        self.set(to, Register::R10);
        self.add(to, i32::from(offset));
    }

    /// Joins two words to one number, in the order in which they are in memory.
    pub(crate) fn pair(&mut self, first: Register, second: Register) {
        let upper = if cfg!(target_endian = "big") { first } else { second };
        self.shift_left(upper, 32);
        self.or(first, second);
    }

    pub(crate) fn swap_half(&mut self, register: Register) {
        self.push(Instruction::SwapHalf(register));
    }

    pub(crate) fn load(&mut self, width: Width, to: Register, base: Register, offset: i16) {
        self.push(Instruction::Load(width, to, base, offset));
    }

    pub(crate) fn load_field(&mut self, width: Width, to: Register, base: Register, field: Field) {
        self.push(Instruction::LoadField(width, to, base, field));
    }

    pub(crate) fn store(&mut self, width: Width, base: Register, offset: i16, from: Register) {
        self.push(Instruction::Store(width, base, offset, from));
    }

    pub(crate) fn store_constant(
        &mut self,
        width: Width,
        base: Register,
        offset: i16,
        constant: i32,
    ) {
        self.push(Instruction::StoreConstant(width, base, offset, constant));
    }

    pub(crate) fn map(&mut self, to: Register, map: M) {
        self.push(Instruction::Map(to, map));
    }

    pub(crate) fn map_value(&mut self, to: Register, map: M) {
        self.push(Instruction::MapValue(to, map));
    }

    pub(crate) fn struct_id(&mut self, to: Register, field: Field) {
        self.push(Instruction::StructId(to, field));
    }

    pub(crate) fn jump(&mut self, label: Label) {
        self.jumps.push((self.instructions.len(), label));
        self.push(Instruction::Jump(0));
    }

    pub(crate) fn jump_if(
        &mut self,
        comparison: Comparison,
        left: Register,
        right: impl Into<Operand>,
        label: Label,
    ) {
        self.jumps.push((self.instructions.len(), label));
        self.push(Instruction::JumpIf(comparison, left, right.into(), 0));
    }

    pub(crate) fn call(&mut self, helper: Helper) {
        self.push(Instruction::Call(helper));
    }

    pub(crate) fn call_kfunc(&mut self, kfunc: Kfunc) {
        self.push(Instruction::CallKfunc(kfunc));
    }

    /// Calls the function that starts at a label.
    pub(crate) fn call_local(&mut self, label: Label) {
        self.jumps.push((self.instructions.len(), label));
        self.push(Instruction::CallLocal(0));
    }

    pub(crate) fn exit(&mut self) {
        self.push(Instruction::Exit);
    }

    /// The program, with its jumps.
    pub(crate) fn finish(mut self) -> Vec<Instruction<M>> {
        let mut slots = Vec::with_capacity(self.instructions.len() + 1);
        let mut slot = 0_usize;
        for instruction in &self.instructions {
            slots.push(slot);
            slot += instruction.slots();
        }
        slots.push(slot);
        for (at, label) in self.jumps {
            let to = self.placed.get(&label).expect("every label is placed");
            let distance = slots[*to] as i64 - slots[at] as i64 - 1;
            let near = i16::try_from(distance).expect("programs have under 32768 slots");
            match &mut self.instructions[at] {
                Instruction::Jump(offset) | Instruction::JumpIf(.., offset) => *offset = near,
                Instruction::CallLocal(offset) => *offset = i32::from(near),
                _ => unreachable!("only jumps and calls have labels"),
            }
        }
        self.instructions
    }
}
