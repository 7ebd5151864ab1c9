// What skep's binding links to and the fake driver does not do: each returns 801, not
// supported. The list is made from the binding's own header by `make cuda`.
#include "versions.h"
#define STUB(name) __attribute__((weak)) int name(void) { return 801; }
#include "stubs.h"
