//go:build invariants

package space

const invariants = true
