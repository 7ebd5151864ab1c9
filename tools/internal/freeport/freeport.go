// Package freeport gives tests ports for servers that are ended and started again at the same one: what a listener at
// port 0 was given is another test's as soon as it is closed.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"testing"
)

// Ports are below those that systems give by themselves.
const (
	first = 12_000
	many  = 18_000
)

// Addr is 127.0.0.1 with a port that nobody listens at, and that no other test on this machine is given until t is
// over.
func Addr(t testing.TB) string {
	t.Helper()
	for range 1000 {
		n := first + rand.N(many)
		hold, free := reserve(n)
		if !free {
			continue
		}
		addr := fmt.Sprintf("127.0.0.1:%d", n)
		l, err := net.Listen("tcp", addr)
		if err != nil {
			hold()
			continue
		}
		t.Cleanup(hold)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		return addr
	}
	t.Fatal("no port is free")
	return ""
}

// reserve takes a port among tests, by the name of a socket that ends with its process; elsewhere than on Linux by
// luck.
func reserve(n int) (giveBack func(), free bool) {
	if runtime.GOOS != "linux" {
		return func() {}, true
	}
	l, err := net.Listen("unix", fmt.Sprintf("@skep-test-port-%d", n))
	if err != nil {
		return nil, false
	}
	return func() { l.Close() }, true
}
