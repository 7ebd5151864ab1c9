//go:build !linux

package store

// smartLog knows no way here.
func smartLog(string) ([]byte, error) { return nil, errNoSmart }
