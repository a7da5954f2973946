#pragma once
#include_next <vulkan/vulkan.hpp>
#ifndef VK_EXT_layer_settings
#include <cstdint>
#include <vector>
namespace VULKAN_HPP_NAMESPACE {
enum class LayerSettingTypeEXT : int32_t { eBool32 = 0 };
struct LayerSettingEXT {
    const char * pLayerName;
    const char * pSettingName;
    LayerSettingTypeEXT type;
    uint32_t valueCount;
    const void * pValues;
};
struct LayerSettingsCreateInfoEXT {
    VkStructureType sType = static_cast<VkStructureType>(1000496000);
    const void * pNext = nullptr;
    uint32_t settingCount = 0;
    const LayerSettingEXT * pSettings = nullptr;
    explicit LayerSettingsCreateInfoEXT(const std::vector<LayerSettingEXT> & settings)
        : settingCount(static_cast<uint32_t>(settings.size())), pSettings(settings.data()) {}
};
}
#endif
