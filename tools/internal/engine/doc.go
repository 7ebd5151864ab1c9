// Package engine is an EMULATED serving engine: nothing is computed, steps take as long as a
// formula says. It stands in for a GPU where there is none, and everything it touches says
// that it is emulated.
//
// Its formula is on purpose not the scheduler's (fixed + linear + square): time is the longer,
// smoothly, of reading weights and of operations at a utilisation that grows with the tokens
// of the step; each step carries the decoding of a batch; each takes up to 20 % more or
// less; and from the middle of a run on everything takes twice as long. The scheduler is
// told what an engine would tell: a few points measured at the beginning (Points).
//
//	step = √(weights² + operations²) + decode + launch,   × noise in [0.8, 1.2],   × 2 after the middle
//	operations = flop ÷ (peak × most · (1 − e^(−n ÷ ramp))),  n filled up to whole tiles
//
// Invariants: equal seeds and equal calls give equal times; Mean is Step without noise.
package engine
