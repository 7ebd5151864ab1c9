//go:build !linux

package admin

import "net"

// peerMay trusts the socket's mode.
func peerMay(net.Conn) bool { return true }
