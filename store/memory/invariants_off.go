//go:build !invariants

package memory

const invariants = false
