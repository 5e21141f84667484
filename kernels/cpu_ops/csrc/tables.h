/* The functions of tables.c, for the module. */

#pragma once

extern PyMethodDef table_methods[];
