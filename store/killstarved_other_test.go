//go:build !linux

package store

const limitsMemory = false

func limitMemory() {}
