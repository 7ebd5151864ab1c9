// Package namespaces is the table of a store's namespaces, tenants and purged salts, as the catalog's rows say.
//
// A block carries the instance of its namespace and the tag of its salt. A purge gives the namespace another instance,
// or the salt another tag; what carries the old one is dead at once (Table.Dead), wherever it lies. Keys become
// fingerprints with both in them, under the store's secret: no client can make two keys collide, or test a guess
// against a salt.
//
// Every lookup reads the table, and waits for nobody: the maps are read without a lock. Who makes, purges or deletes a
// namespace commits first and changes the table afterwards, entry by entry; one at a time does. The order in which it
// changes them matters to those who read meanwhile: a namespace is entered by its instance before it is published
// under its number and name, and taken out by its number first.
//
// Sections lets who takes a namespace out of the table wait for those who may have found it there.
package namespaces
