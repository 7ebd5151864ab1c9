// Package integration holds no code: its tests have programs of others use a server. A browser looks at the console,
// and Redis's client for Go, go-redis, speaks to it.
//
// It is a module of its own, so that none of these are among the requirements of a program that embeds skep. Tests
// whose program is not installed are skipped.
package integration
