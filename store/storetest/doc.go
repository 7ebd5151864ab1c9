// Package storetest is the contract of package skep as tests: what every Store must
// do, whoever made it. A Store passes in one line,
//
//	func TestContract(t *testing.T) { storetest.Test(t, open) }
//
// and is compared with the in-memory reference, over random operations, in another:
//
//	func TestRandom(t *testing.T) { storetest.Random(t, open, storetest.RandomOptions{}) }
//
// # What it relies on
//
//   - open gives a fresh, empty Store, as Config asks. One that cannot do what Config
//     asks calls t.Skip and says so. The test closes the Store.
//   - A Store without capacity pressure keeps what it was given. Where Config has a
//     cap the tests accept that blocks are missed, never that they are wrong.
//   - Clocks are not controlled. Nothing is asserted about how long anything takes; a
//     few tests wait out a lease or a timeout of some tens of milliseconds.
//
// # How it checks bytes
//
// Every byte stored is derived from what it is stored under (Payload), so any byte of
// any restore can be checked without remembering what was put. Where layers, heads
// and tokens lie is computed here once more, element by element, so that a Store's
// own arithmetic is not checked against itself.
package storetest
