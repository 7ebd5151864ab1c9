//go:build !linux

package store

func openersOf(string) []string { return nil }
