/* Rust programs get random bytes from bcryptprimitives.dll, which Wine 8 lacks. This DLL uses advapi32 instead. */

#include <stddef.h>

unsigned char __stdcall SystemFunction036(void *buffer, unsigned long length);

__declspec(dllexport) int __stdcall ProcessPrng(unsigned char *buffer, size_t length)
{
    while (length > 0) {
        unsigned long part = length > 4096 ? 4096 : (unsigned long)length;
        if (!SystemFunction036(buffer, part))
            return 0;
        buffer += part;
        length -= part;
    }
    return 1;
}

int __stdcall DllMain(void *library, unsigned long reason, void *reserved)
{
    return 1;
}
