//go:build !linux

package hostile

func unixPlayers() []Player { return nil }
