//go:build !invariants

package owed

const invariants = false
