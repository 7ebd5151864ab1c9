// Package failpoint makes errors happen in the durable path, for tests. Shipped code does
// not import it: `go run ./tools/errpaths -failpoints DIR` writes copies of the durable
// path's files in which every look at an error is a call of this package, and go test's
// -overlay builds those in their place.
//
// A failpoint is armed for one of its passes. There
//
//   - an error variable gets an error such as the call before it could have given, though
//     that call went as it went: whatever it did has happened, as when an answer is lost,
//   - the context of the operation under way is cancelled,
//   - or a channel that is waited for is ready.
//
// It fires once. One failpoint is armed at a time.
package failpoint
