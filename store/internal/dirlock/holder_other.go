//go:build !linux

package dirlock

func openersOf(string) []string { return nil }
